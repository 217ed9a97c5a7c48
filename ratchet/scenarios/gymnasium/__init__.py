"""Environments of gymnasium and PettingZoo, and batched ones on tensors."""
