"""Names, statements and classes, for any printer."""
