"""Routes by path."""
