"""State of a tensor trainer, saved without pickle and equal when loaded.

Contains all inputs of the next iteration except the hyper-parameters and the data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ratchet.errors import CheckPointNotFoundError, StateError
from trainers.custom_state import Attributes, load_attributes, save_attributes
from trainers.state_tree import Tree, flatten_tree

SCHEMA = 1
TENSORS_FILE = "state.safetensors"
VALUES_FILE = "state.json"
_SEPARATOR = "/"
_TENSOR_FIELDS = (
    "agents",
    "normalization",
    "optimizer",
    "controllers",
    "episodes",
    "callback_tensors",
    "stand_ins",
    "pool",
)
_VALUE_FIELDS = ("iteration", "stage", "schedule", "data_cursor", "callbacks")
_ADDED_FIELDS = ("callbacks", "callback_tensors", "stand_ins", "pool", "attributes")
"""Fields that states of earlier versions may lack."""

TensorTree = dict[str, dict[str, Tensor]]


@dataclass(eq=False)
class State:
    """State from which a tensor trainer continues.

    Attributes
    ----------
    iteration
        The number of finished training iterations.
    stage
        The stage that created the state: ``"initial_state"``, ``"pretrain"``, ``"imitate"``,
        ``"phase_state"`` or ``"train"``.
    agents
        Agent → name → parameter or buffer: its own, even while a partner replaces it.
    normalization
        The observation normalisation, under ``"observations"``.
    optimizer
        Parameter → name → the optimizer's tensor for it, e.g. ``exp_avg``.
    controllers
        Adapted values of a loss, e.g. ``kl_beta``: name → buffer, under ``"loss"``.
    episodes
        Unfinished episodes that the next iteration continues, under ``"train"``; empty if
        iterations start new ones.
    schedule
        Further state of a learning-rate schedule.
    data_cursor
        Position of the next datapoints.
    callbacks, callback_tensors
        The callbacks' states, and whether one has stopped the run; empty without callbacks. See
        :class:`trainers.callbacks.callback_list.CallbackList`.
    stand_ins
        Like ``agents``, for partners that replace agents in a phase.
    pool
        Like ``agents``, for earlier versions to sample from in a phase: ``AGENT@ITERATION``.
    attributes
        Attributes assigned by a custom trainer class.
    """

    iteration: int = 0
    stage: str = "initial_state"
    agents: TensorTree = field(default_factory=dict)
    normalization: TensorTree = field(default_factory=dict)
    optimizer: TensorTree = field(default_factory=dict)
    controllers: TensorTree = field(default_factory=dict)
    episodes: TensorTree = field(default_factory=dict)
    schedule: dict[str, float] = field(default_factory=dict)
    data_cursor: dict[str, int] = field(default_factory=dict)
    callbacks: dict[str, Any] = field(default_factory=dict)
    callback_tensors: TensorTree = field(default_factory=dict)
    stand_ins: TensorTree = field(default_factory=dict)
    pool: TensorTree = field(default_factory=dict)
    attributes: Attributes = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Compare bit by bit, NaN with NaN included."""
        if not isinstance(other, State):
            return NotImplemented
        if any(getattr(self, name) != getattr(other, name) for name in _VALUE_FIELDS):
            return False
        mine, others = dict(self._tensors()), dict(other._tensors())
        return same_trees(mine, others) and same_trees(self.attributes, other.attributes)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name; tensors are not copied."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> State:
        """Return the state of :meth:`to_dict`'s result; StateError if its names differ."""
        expected = {part.name for part in fields(cls)}
        if content.keys() | set(_ADDED_FIELDS) != expected:
            raise StateError(f"state: got {sorted(content)}, expected {sorted(expected)}.")
        return cls(**content)

    def save(self, directory: str | Path) -> None:
        """Write the state into a folder, created if missing.

        Raises StateError if a name contains a slash, or a value is not JSON.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {name: t.detach().cpu().contiguous().clone() for name, t in self._tensors()}
        values = {name: getattr(self, name) for name in _VALUE_FIELDS}
        try:
            text = json.dumps({"schema": SCHEMA, **values}, sort_keys=True, indent=1)
        except (TypeError, ValueError) as error:
            raise StateError(f"state: a value cannot be written as JSON: {error}.") from error
        save_file(tensors, directory / TENSORS_FILE)
        (directory / VALUES_FILE).write_text(text + "\n", encoding="utf-8")
        save_attributes(self.attributes, directory)

    @classmethod
    def load(cls, directory: str | Path) -> State:
        """Read a state that :meth:`save` wrote; equal to the saved one.

        Raises CheckPointNotFoundError if the folder has none, and StateError if it cannot be read.
        """
        directory = Path(directory)
        for name in (TENSORS_FILE, VALUES_FILE):
            if not (directory / name).is_file():
                raise CheckPointNotFoundError(
                    f"no saved state in {directory}: {name} is missing. Pass the folder that"
                    " State.save wrote, or train first."
                )
        try:
            values = json.loads((directory / VALUES_FILE).read_text(encoding="utf-8"))
            tensors = load_file(directory / TENSORS_FILE)
        except (ValueError, SafetensorError) as error:
            raise StateError(f"the state in {directory} is damaged: {error}.") from error
        content: dict[str, Any] = {**_checked_values(values, directory), **_unflatten(tensors)}
        return cls(**content, attributes=load_attributes(directory))

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for part in _TENSOR_FIELDS:
            for group, tensors in sorted(getattr(self, part).items()):
                for name, tensor in sorted(tensors.items()):
                    path = (part, group, name)
                    if any(_SEPARATOR in piece for piece in path):
                        raise StateError(f"state: a name in {path} contains {_SEPARATOR!r}.")
                    yield _SEPARATOR.join(path), tensor


def check_same_tensors(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str
) -> None:
    """Check that a state's tensors have the names and shapes of the trainer's.

    Raises StateError with the first differing name, and the actual and expected values.
    """
    advice = " The state has other parameters (widths, layers, agents): use those, or retrain."
    for name in sorted(expected.keys() - tensors.keys()):
        raise StateError(f"{what}: the state has no {name!r}, which the trainer has.{advice}")
    for name in sorted(tensors.keys() - expected.keys()):
        raise StateError(f"{what}: the state has {name!r}, which the trainer lacks.{advice}")
    for name, tensor in expected.items():
        got = tensors[name]
        if got.shape != tensor.shape or got.dtype != tensor.dtype:
            raise StateError(
                f"{what}: {name!r} is {tuple(got.shape)} {got.dtype} in the state, expected"
                f" {tuple(tensor.shape)} {tensor.dtype}.{advice}"
            )


def clone_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU, detached from the graph."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal bit by bit, including NaN."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    flat = [t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
    return torch.equal(*flat)


def same_trees(one: Tree, other: Tree) -> bool:
    """Return whether two nested states are equal, their tensors bit by bit."""
    (mine, my_tensors), (its, its_tensors) = flatten_tree(one), flatten_tree(other)
    return (
        bool(mine == its)
        and my_tensors.keys() == its_tensors.keys()
        and all(same_bits(tensor, its_tensors[name]) for name, tensor in my_tensors.items())
    )


def _checked_values(values: object, directory: Path) -> dict[str, Any]:
    if not isinstance(values, dict) or values.pop("schema", None) != SCHEMA:
        raise StateError(f"the state in {directory} has another schema, expected {SCHEMA}.")
    values.setdefault("callbacks", {})
    if values.keys() != set(_VALUE_FIELDS):
        raise StateError(
            f"the state in {directory} has {sorted(values)}, expected {sorted(_VALUE_FIELDS)}."
        )
    return values


def _unflatten(tensors: Mapping[str, Tensor]) -> dict[str, TensorTree]:
    trees: dict[str, TensorTree] = {part: {} for part in _TENSOR_FIELDS}
    for path, tensor in tensors.items():
        part, group, name = path.split(_SEPARATOR)
        trees[part].setdefault(group, {})[name] = tensor
    return trees
