"""Experiment files: YAML, overrides, parameters and agents of earlier runs, older versions."""
