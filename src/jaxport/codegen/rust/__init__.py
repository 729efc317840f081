"""The Rust language, as far as printed source needs it: expressions, ownership and layout; it knows no framework."""
