"""What is known of the values of a graph before it runs: one abstract interpretation, a table from operator to rule.

`Knowledge(model)` answers for any value: its position form, its band, its interval, and what it never is.
"""
