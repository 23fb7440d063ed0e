"""The command line: each command is a function of its name."""
