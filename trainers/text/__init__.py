"""Trainers of chat models, which are sampled and fine-tuned through APIs."""
