"""What all commands have in common: streams, output options, files, and the errors of a command line."""
