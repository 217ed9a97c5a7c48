"""States of trainers as values and files: weights, optimizers, generators."""
