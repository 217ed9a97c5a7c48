"""Registry of agents' memories in environments: recurrent bodies. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.registry import Registry

if TYPE_CHECKING:
    from ratchet.scenarios.gymnasium.recurrent_bodies import RecurrentBody

BUILT_IN = dict.fromkeys(("gru", "lstm"), "ratchet.scenarios.gymnasium.recurrent_bodies")
"""Name of a memory → the module that registers it."""
RECURRENCES: Registry[RecurrentBody] = Registry(
    "recurrence",
    "ratchet.scenarios.gymnasium.recurrent_bodies:RecurrentBody",
    "ratchet.scenarios.gymnasium.recurrence",
)
