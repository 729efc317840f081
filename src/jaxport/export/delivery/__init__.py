"""Where a finished graph runs: opsets, targets, what they lack, the runtime, and the last checks."""
