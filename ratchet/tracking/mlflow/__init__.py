"""The mirror of run folders in MLflow; nothing else imports it."""
