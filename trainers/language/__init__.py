"""Trainers of language models on their tokens: bases, ready-made ones, and the loop around them."""
