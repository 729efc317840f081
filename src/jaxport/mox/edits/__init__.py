"""Ready-made edits, each a replacement for `Mox.sub`."""
