"""What happens around an experiment's stages: resolve, set up, record, keep, fork, verify."""
