"""Models that generate text: their steps, caches and names."""
