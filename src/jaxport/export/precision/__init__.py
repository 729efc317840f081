"""A model in fewer bits: which nodes, what is measured for it, and the passes that change them."""
