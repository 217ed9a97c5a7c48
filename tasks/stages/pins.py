"""``Pins``: stages of an earlier run that an arm keeps; a value, made by ``flows.runs.pinning``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Pins:
    """Stages of an earlier run that are kept although their keys may no longer be computed.

    Attributes
    ----------
    stages
        Name of a stage that is no training, and iterations done after it → key.
    states
        Iterations done → key of the state, in a chain without a gap, 0 left out.
    """

    stages: Mapping[tuple[str, int], str] = field(default_factory=dict)
    states: Mapping[int, str] = field(default_factory=dict)

    def find(self, name: str, iteration: int) -> str | None:
        """Return the key that is kept for a stage, if any."""
        if name == "train":
            return self.states.get(iteration)
        return self.stages.get((name, iteration))

    @property
    def last(self) -> int:
        """The iterations done in the last state that is kept; 0 without one."""
        return max(self.states, default=0)
