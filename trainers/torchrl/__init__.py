"""TorchRL's trainers, run in stages: built from its configs, or by the user."""
