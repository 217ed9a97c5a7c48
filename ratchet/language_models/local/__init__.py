"""Language models that are trained here: their weights, their log-probabilities, their answers."""

BUILT_IN = {
    "in_process": "ratchet.language_models.local.in_process_engine",
    "vllm": "ratchet.language_models.local.vllm_rollouts",
}
"""Engines' names → the modules that register them."""
