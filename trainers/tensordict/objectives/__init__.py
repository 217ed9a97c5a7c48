"""Losses of trainers of networks, and their advantage estimators."""
