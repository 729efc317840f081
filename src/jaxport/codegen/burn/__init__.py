"""Structured source for Burn, the deep-learning framework in Rust: a crate.

A recorded call is printed by its rule (`calls`), or else by the primitives that JAX traces it to (`equations`, and the
rules of `elementwise`, `shapes`, `reductions`, `indexing`, `windows`, `control`). Both work on typed values (`values`)
and print into a body (`body`); what Burn cannot say is refused there, by name.
"""
