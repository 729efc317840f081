"""Module expressions as values: traced, called, given other types and sizes."""
