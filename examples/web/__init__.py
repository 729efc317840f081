"""A page that classifies a digit drawn on a canvas, by an exported model."""
