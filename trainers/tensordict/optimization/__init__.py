"""How minibatches become steps of an optimizer."""
