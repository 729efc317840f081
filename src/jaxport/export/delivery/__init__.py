"""What a finished graph needs and where it runs: opsets, targets, precisions, and the last checks."""
