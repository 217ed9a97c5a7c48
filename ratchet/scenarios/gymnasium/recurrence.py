"""Registry of agents' memories in environments, which are recurrent bodies. Imports no torch."""

from __future__ import annotations

from typing import Any

from ratchet.registry import Registry

BUILT_IN = dict.fromkeys(("gru", "lstm"), "ratchet.scenarios.gymnasium.recurrent_bodies")
"""Name of a memory → the module that registers it."""
RECURRENCES: Registry[Any] = Registry(
    "recurrence",
    "ratchet.scenarios.gymnasium.recurrent_bodies:RecurrentBody",
    "ratchet.scenarios.gymnasium.recurrence",
)
