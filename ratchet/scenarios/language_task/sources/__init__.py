"""Sources of tasks, by the names that experiments set as ``dataset``."""

BUILT_IN = {
    name: f"ratchet.scenarios.language_task.sources.{name}"
    for name in ("arithmetic", "pig_latin", "reverse")
}
"""Name → the module that registers it."""
