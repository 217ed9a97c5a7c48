"""Where it happens: the process's environment, imports, and a temporary Prefect server."""
