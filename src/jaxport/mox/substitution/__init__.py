"""What takes the place of a block, and how it gets there."""
