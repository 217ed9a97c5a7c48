"""Trainers of small local networks on batched tensordict environments."""
