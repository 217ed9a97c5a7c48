"""Environments of tasks, by the names that experiments set as ``language_task.environment``."""

BUILT_IN = {
    "python_tool": "ratchet.scenarios.language_task.environments.python_tool",
    "single_turn": "ratchet.scenarios.language_task.environments.base",
}
"""Name → the module that registers it."""
