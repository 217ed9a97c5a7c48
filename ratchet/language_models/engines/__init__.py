"""Engines: models that generate, in a trainer's process or for the service, and their inputs.

Trainers and the service import them; they import neither.
"""

BUILT_IN = {
    "in_process": "ratchet.language_models.engines.in_process",
    "vllm": "ratchet.language_models.engines.vllm_rollouts",
}
"""Name of an engine for rollouts → the module that registers it."""
