"""The command line: one module for each small group of commands, heavy imports inside functions."""
