"""What is done to a recorded program before it is printed, whatever the language."""
