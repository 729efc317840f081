"""Rules on recorded steps as text, and the engine that applies them until none applies."""
