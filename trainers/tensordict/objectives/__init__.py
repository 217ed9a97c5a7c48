"""Losses of trainers of networks, and the estimators of advantages that feed them."""
