"""The mirror of run folders in MLflow; only these modules import mlflow."""
