"""A model in fewer bits: the precisions by name, and the passes that make them."""
