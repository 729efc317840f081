"""From a query to what it hits: the tree, XPath, and selections."""
