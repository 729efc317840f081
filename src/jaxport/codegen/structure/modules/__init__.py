"""The tree of modules: where it comes from, and what is repeated in it."""
