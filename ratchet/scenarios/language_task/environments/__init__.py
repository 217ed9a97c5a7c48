"""What is around a task, by the names that experiments give as ``language_task.environment``."""

BUILT_IN = {
    "single_turn": "ratchet.scenarios.language_task.environments.single_turn",
}
"""Name → the module that registers it."""
