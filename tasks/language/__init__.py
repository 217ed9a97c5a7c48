"""The stages of an arm whose models learn from their tokens."""
