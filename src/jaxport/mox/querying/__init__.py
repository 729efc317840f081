"""From a query to what it matches: XPath, sets of nodes, calls as programs, and what is known of their weights."""
