"""Module expressions as text, as a page, and as an account of costs."""
