"""Language models trained in this process: weights, log-probabilities and generation."""

BUILT_IN = {
    "in_process": "ratchet.language_models.local.in_process_engine",
    "vllm": "ratchet.language_models.local.vllm_rollouts",
}
"""Engine name → the module that registers it."""
