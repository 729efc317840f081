"""The marks that calls leave in a trace, and the window in which they do."""
