"""Environments of gymnasium and PettingZoo, and batched ones on tensors."""

BUILT_IN = {
    "CartPole-v0": "ratchet.scenarios.gymnasium.cartpole",
    "CartPole-v1": "ratchet.scenarios.gymnasium.cartpole",
    "Pendulum-v1": "ratchet.scenarios.gymnasium.pendulum",
}
"""Id of a batched environment → the module that registers it."""
