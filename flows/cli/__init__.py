"""The command line: one module per group of commands, with heavy imports inside functions."""
