"""Trainers of chat models: rollouts are sampled and models fine-tuned through an API."""
