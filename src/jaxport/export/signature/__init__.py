"""The border of a model: what a user says of its inputs, and how arguments and results are stored."""
