"""Where tasks come from, by the names that experiments give as ``dataset``."""

BUILT_IN = {
    name: f"ratchet.scenarios.language_task.sources.{name}"
    for name in ("arithmetic", "pig_latin", "reverse")
}
"""Name → the module that registers it."""
