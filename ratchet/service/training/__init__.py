"""Training a model for a job: examples, losses, loops."""
