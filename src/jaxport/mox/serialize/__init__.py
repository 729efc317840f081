"""Mox to text and back: complete, with nothing that runs while it is read."""
