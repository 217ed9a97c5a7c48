"""State of a language trainer, saved without pickle and equal when loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ratchet.errors import StateError
from ratchet.rollouts.trajectory import Trajectory
from trainers.custom_state import Attributes
from trainers.state_tree import load_tree, save_tree
from trainers.tensordict.states.state import same_trees

STATE_NAME = "language"
_OMITTED_IF_EMPTY = frozenset({"attributes", "pool"})


@dataclass(eq=False)
class LanguageState:
    """State from which a language trainer continues.

    Attributes
    ----------
    iteration
        The number of finished training iterations.
    stage
        The stage that created the state: ``"initial_state"``, ``"phase_state"`` or ``"train"``.
    cursor
        The number of tasks sampled from the training set.
    dataset_hash
        The hash of the training set of the cursor.
    initial
        The key of the stage with the initial models; empty if none is stored.
    learners
        Model → its trainer's state: weights, optimizer, adapted values.
    pending
        Rollouts with the previous iteration's weights, to be learned from next.
    pending_metrics
        Metrics of those rollouts.
    attributes
        Attributes assigned by a custom trainer class.
    pool
        Earlier states that play in this phase, ``AGENT@ITERATION`` → key of the stage.
    """

    iteration: int = 0
    stage: str = "initial_state"
    cursor: int = 0
    dataset_hash: str = ""
    initial: str = ""
    learners: dict[str, Any] = field(default_factory=dict)
    pending: list[Trajectory] | None = None
    pending_metrics: dict[str, float] = field(default_factory=dict)
    callbacks: dict[str, Any] = field(default_factory=dict)
    callback_tensors: dict[str, Any] = field(default_factory=dict)
    attributes: Attributes = field(default_factory=dict)
    pool: dict[str, str] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Compare bit by bit."""
        if not isinstance(other, LanguageState):
            return NotImplemented
        return same_trees(self.to_dict(), other.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the state as nested plain data and tensors."""
        content = {part.name: getattr(self, part.name) for part in fields(self)}
        if self.pending is not None:
            content["pending"] = [trajectory.to_dict() for trajectory in self.pending]
        return {n: part for n, part in content.items() if part or n not in _OMITTED_IF_EMPTY}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> LanguageState:
        """Return the state of :meth:`to_dict`'s result."""
        expected = {part.name for part in fields(cls)}
        if content.keys() | _OMITTED_IF_EMPTY != expected:
            raise StateError(
                f"state: got the fields {sorted(content)}, expected {sorted(expected)}. It was"
                " saved by another version of the trainer; train from scratch."
            )
        pending = content["pending"]
        if pending is not None:
            pending = [Trajectory.from_dict(trajectory) for trajectory in pending]
        return cls(**{**content, "pending": pending})

    def save(self, directory: str | Path) -> None:
        """Write the state into a folder, created if missing."""
        save_tree(self.to_dict(), Path(directory), STATE_NAME)

    @classmethod
    def load(cls, directory: str | Path, *, copy: bool = True) -> LanguageState:
        """Read a state that :meth:`save` wrote; equal to the saved one.

        Without ``copy``, tensors are mapped: see :func:`trainers.state_tree.load_tree`.
        """
        return cls.from_dict(load_tree(Path(directory), STATE_NAME, copy=copy))

    def without_optimizers(self) -> LanguageState:
        """Return the state without the optimizers, which sampling does not read."""
        learners = {model: without_optimizer(state) for model, state in self.learners.items()}
        return replace(self, learners=learners)

    @staticmethod
    def initial_of(directory: str | Path) -> str:
        """Read only the key of the stage with the initial models from a saved state."""
        file = Path(directory) / f"{STATE_NAME}.json"
        return str(json.loads(file.read_text(encoding="utf-8"))["initial"])


def without_optimizer(learner: Mapping[str, Any]) -> dict[str, Any]:
    """Return a learner's state without that of a ``LanguageOptimizer``."""
    part = learner.get("optimizer")
    is_ours = isinstance(part, Mapping) and "moments" in part
    return {name: each for name, each in learner.items() if name != "optimizer" or not is_ours}
