"""Token-level trainers of language models: base classes, built-in trainers, and their loop."""
