"""Imitation learning of agents before training."""
