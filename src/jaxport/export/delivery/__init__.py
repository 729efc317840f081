"""Where a finished graph runs: targets, precisions, and the last checks."""
