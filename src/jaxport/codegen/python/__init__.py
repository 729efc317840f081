"""The Python language, as far as printed source needs it: calls, statements and sizes."""
