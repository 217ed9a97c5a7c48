"""Runners that execute independent work in processes, clusters and work pools."""
