"""Life cycle of runs: resolve, set up, record, resume, fork, verify, export, delete."""
