"""Minibatches, optimizers and the freezing of agents."""
