"""One step of an experiment each: claimed in the store, retried, reported to Prefect."""
