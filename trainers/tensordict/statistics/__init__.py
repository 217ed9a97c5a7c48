"""Logged statistics of rollouts, losses and messages."""
