"""From a query to its matches: the tree, XPath, and selections."""
