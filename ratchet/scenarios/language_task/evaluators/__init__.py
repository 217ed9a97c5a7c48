"""What answers are worth, by the names that experiments give as ``language_task.evaluator``."""

BUILT_IN = {
    name: "ratchet.scenarios.language_task.evaluators.matching" for name in ("exact", "partial")
}
"""Name → the module that registers it."""
