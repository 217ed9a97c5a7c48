"""Language models trained in this process: weights, log-probabilities and generation."""
