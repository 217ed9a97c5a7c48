"""Training through TRL, for models that run through transformers."""
