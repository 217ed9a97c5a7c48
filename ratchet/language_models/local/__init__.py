"""Language models that are trained here: their weights, their log-probabilities, their answers."""
