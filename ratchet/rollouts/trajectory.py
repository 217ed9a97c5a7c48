"""Trajectories: the tokens that a model read and wrote, from which language trainers learn."""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

from ratchet.errors import DataError

FinishReason = Literal["stop", "length", "environment"]
_FINISH_REASONS = get_args(FinishReason)


@dataclass
class Trajectory:
    """The tokens of a conversation as its model saw them, and the outcome.

    A conversation that is only appended to is one trajectory; one whose history is rewritten has
    several, which share the ``attempt_id``. It may be changed, as trainers set advantages.

    Raises
    ------
    DataError
        If the lists differ in length, the mask isn't 0 or 1, a number isn't finite, or the reason
        to end is unknown.
    """

    tokens: list[int]
    """The prompt and all text of the conversation."""
    loss_mask: list[int]
    """1 where the model itself wrote the token."""
    logprobs: list[float]
    """The sampler's, at its temperature; 0 where the mask is 0."""
    reward: float = 0.0
    scores: dict[str, float] = field(default_factory=dict)
    """The parts of the reward."""
    group_id: str = ""
    """The answers that are compared with each other."""
    run_id: str = ""
    """One run of a task: all attempts at it in an iteration, as ``group_id``."""
    attempt_id: str = ""
    """One attempt at the task; empty for an attempt that is this trajectory alone."""
    task_id: str = ""
    agent: str = ""
    role: str = ""
    """The role that a match drew for the agent; empty if roles are not drawn."""
    finish_reason: FinishReason = "stop"
    is_truncated: bool = False
    is_validation: bool = False
    advantage: float | None = None
    token_advantages: list[float] | None = None
    model_version: int = 0
    """How many updates the model had seen that wrote the tokens."""
    metrics: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.check()
        self.tokens = list(map(operator.index, self.tokens))
        self.loss_mask = list(map(int, self.loss_mask))
        self.logprobs = list(map(float, self.logprobs))
        self.reward = float(self.reward)
        if self.token_advantages is not None:
            self.token_advantages = list(map(float, self.token_advantages))

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.tokens)

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - as of a dictionary
        """Return a field, metric or part of the reward by name; ``default`` if it isn't set."""
        if name in _NAMES:
            value = getattr(self, name)
            return default if value is None else value
        return self.metrics.get(name, self.scores.get(name, default))

    @property
    def role_or_agent(self) -> str:
        """The role, or the agent if roles are not drawn: the name of its average."""
        return self.role or self.agent

    @property
    def num_written(self) -> int:
        """The number of tokens that the model itself wrote."""
        return sum(self.loss_mask)

    @property
    def num_prompt(self) -> int:
        """The number of tokens before the first that the model wrote."""
        return self.loss_mask.index(1) if 1 in self.loss_mask else len(self.tokens)

    def check(self) -> None:
        """Check that the lists have one length and all numbers are numbers."""
        lists: dict[str, Sequence[float]] = {
            "loss_mask": self.loss_mask,
            "logprobs": self.logprobs,
            **(
                {} if self.token_advantages is None else {"token_advantages": self.token_advantages}
            ),
        }
        for name, values in lists.items():
            if len(values) != len(self.tokens):
                raise DataError(
                    f"trajectory {self._name}: got {len(values)} {name} for {len(self.tokens)}"
                    " tokens, expected one a token."
                )
        if self.finish_reason not in _FINISH_REASONS:
            raise DataError(
                f"trajectory {self._name}: finish_reason: got {self.finish_reason!r}, expected one"
                f" of {_FINISH_REASONS}."
            )
        if min(self.tokens, default=0) < 0:
            raise DataError(f"trajectory {self._name}: got the token {min(self.tokens)}, below 0.")
        if not {0, 1}.issuperset(self.loss_mask):
            wrong = next(value for value in self.loss_mask if value not in (0, 1))
            raise DataError(
                f"trajectory {self._name}: loss_mask: got {wrong}, expected 1 where the model"
                " wrote the token and 0 elsewhere."
            )
        if self.advantage is not None:
            lists["advantage"] = [self.advantage]
        parts = {"scores": self.scores.values(), "metrics": self.metrics.values()}
        for name, numbers in {**lists, "reward": [self.reward], **parts}.items():
            # a sum is finite only of finite numbers: asked first, as it is the fastest
            if not (math.isfinite(sum(numbers)) or all(map(math.isfinite, numbers))):
                infinite = next(number for number in numbers if not math.isfinite(number))
                raise DataError(
                    f"trajectory {self._name}: {name}: got {infinite}, expected finite numbers."
                )

    @property
    def _name(self) -> str:
        return repr(self.attempt_id or self.task_id or self.group_id)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without an empty role."""
        data = asdict(self)
        if not self.role:
            del data["role"]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create a trajectory from plain data; the inverse of :meth:`to_dict`.

        In data of earlier versions, without ``attempt_id``, ``run_id`` is the attempt.
        """
        unknown = sorted(set(data) - _NAMES)
        missing = sorted({"tokens", "loss_mask", "logprobs"} - set(data))
        if unknown or missing:
            raise DataError(
                f"trajectory: unknown {unknown}, missing {missing}; known: {sorted(_NAMES)}."
            )
        if "attempt_id" not in data and "run_id" in data:
            data = {**data, "attempt_id": data["run_id"], "run_id": data.get("group_id", "")}
        return cls(**data)


_NAMES = frozenset(one.name for one in fields(Trajectory))


def save_trajectories(trajectories: Iterable[Trajectory], path: str | Path) -> None:
    """Write trajectories as lines of JSON without rounding; equal ones give equal bytes.

    The write is atomic.

    Raises
    ------
    DataError
        If a number in one isn't finite (it may have been set later).
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary_file = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary_file.open("w", encoding="utf-8") as file:
            for trajectory in trajectories:
                trajectory.check()
                line = json.dumps(
                    trajectory.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False
                )
                file.write(f"{line}\n")
        temporary_file.replace(path)
    finally:
        temporary_file.unlink(missing_ok=True)


def load_trajectories(path: str | Path) -> list[Trajectory]:
    """Load a file of :func:`save_trajectories`; bit for bit equal to the saved trajectories.

    Raises
    ------
    DataError
        If the file is missing, or a line isn't a trajectory.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file, expected trajectories as lines of JSON.")
    loaded = []
    with path.open("rb") as file:  # as bytes, which lines end only at a line feed
        for number, line in enumerate(file, 1):
            try:
                loaded.append(Trajectory.from_dict(json.loads(line)))
            except (ValueError, TypeError) as error:
                raise DataError(f"{path}, line {number}: not a trajectory ({error}).") from error
    return loaded
