"""What is around a task, by the names that experiments give as ``language_task.environment``."""

BUILT_IN = {
    name: f"ratchet.scenarios.language_task.environments.{name}"
    for name in ("python_tool", "single_turn")
}
"""Name → the module that registers it."""
