"""TorchRL's own trainers, run in stages: built from its configs, or by the user."""
