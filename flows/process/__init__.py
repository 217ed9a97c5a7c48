"""Process-level concerns: environment, imports, output, and the temporary Prefect server."""
