"""The walk over bound nodes, and its compilation."""
