"""Names of values and classes that say what they are."""
