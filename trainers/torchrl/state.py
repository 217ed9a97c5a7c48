"""State of a TorchRL trainer, saved without pickle and equal when loaded.

Each frame of a replay buffer is stored once: a stage's folder contains its new frames and the key
of the previous stage, which leads to the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ratchet.errors import CheckPointNotFoundError, StateError
from trainers.custom_state import Attributes, load_attributes, save_attributes
from trainers.results import FolderOf
from trainers.state_tree import Json, Tensors
from trainers.tensordict.states.state import same_trees
from trainers.torchrl.replay import Frames, ReplayContent, frames_file

SCHEMA = 1
TENSORS_FILE = "state.safetensors"
VALUES_FILE = "state.json"


@dataclass(frozen=True)
class Stored:
    """Stored part of a buffer: up to which write, and in which stage."""

    key: str
    write_count: int


@dataclass(eq=False)
class TorchRlState:
    """State from which a TorchRL trainer continues.

    ``iteration`` counts finished training iterations; ``stage``, ``"initial_state"`` or
    ``"train"``, created the state; ``values`` are nested, with marks in place of tensors;
    ``attributes`` are those assigned by a custom trainer class.
    """

    iteration: int = 0
    stage: str = "initial_state"
    values: Json = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)
    buffers: dict[str, ReplayContent] = field(default_factory=dict)
    attributes: Attributes = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Compare bit by bit, including NaN and the buffers' contents."""
        if not isinstance(other, TorchRlState):
            return NotImplemented
        if (self.iteration, self.stage, self.values) != (
            other.iteration,
            other.stage,
            other.values,
        ):
            return False
        return same_trees([self.tensors, self.attributes], [other.tensors, other.attributes]) and (
            self.buffers.keys() == other.buffers.keys()
            and all(_same_content(mine, other.buffers[n]) for n, mine in self.buffers.items())
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name; tensors and buffers are not copied."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> TorchRlState:
        """Return the state of :meth:`to_dict`'s result."""
        return cls(**content)

    def save(self, directory: str | Path, stored: Mapping[str, Stored] | None = None) -> None:
        """Write the state into a folder, created if missing.

        Parameters
        ----------
        stored
            Locations of the writes before those in ``buffers``; none if these are complete.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        buffers = {}
        for name, content in sorted(self.buffers.items()):
            before = (stored or {}).get(name)
            is_whole = content.first <= content.write_count - content.size
            buffers[name] = {
                "write_count": content.write_count,
                "size": content.size,
                "first": content.first,
                "before": None if before is None or is_whole else before.key,
            }
            if content.segments:
                save_file(content.joined(), frames_file(directory, name))
        values = {
            "schema": SCHEMA,
            "iteration": self.iteration,
            "stage": self.stage,
            "values": self.values,
            "buffers": buffers,
        }
        save_file(self.tensors, directory / TENSORS_FILE)
        text = json.dumps(values, sort_keys=True, indent=1, allow_nan=False)
        (directory / VALUES_FILE).write_text(text + "\n", encoding="utf-8")
        save_attributes(self.attributes, directory)

    @classmethod
    def load(cls, directory: str | Path, folder_of: FolderOf | None = None) -> TorchRlState:
        """Read a state that :meth:`save` wrote; equal to the saved one.

        Parameters
        ----------
        folder_of
            Finds the states of earlier stages; needed if they store some of a buffer's frames.
        """
        directory = Path(directory)
        values = _read_values(directory)
        try:
            tensors = load_file(directory / TENSORS_FILE)
            buffers = {name: _read_buffer(directory, name, folder_of) for name in values["buffers"]}
        except (OSError, SafetensorError) as error:
            raise StateError(f"the state in {directory} is damaged: {error}.") from error
        attributes = load_attributes(directory)
        return cls(
            values["iteration"], values["stage"], values["values"], tensors, buffers, attributes
        )


def _read_values(directory: Path) -> dict[str, Any]:
    path = directory / VALUES_FILE
    if not path.is_file():
        raise CheckPointNotFoundError(
            f"no saved state in {directory}: {VALUES_FILE} is missing. Pass the folder of a stage"
            " or a checkpoint, or train first."
        )
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StateError(f"the state in {directory} is damaged: {error}.") from error
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise StateError(f"the state in {directory} has another schema, expected {SCHEMA}.")
    return values


def _read_buffer(directory: Path, name: str, folder_of: FolderOf | None) -> ReplayContent:
    """Read a buffer's frames from this stage and earlier ones, newest first."""
    entry = _read_values(directory)["buffers"][name]
    content = ReplayContent(entry["write_count"], entry["size"])
    oldest = content.write_count - content.size
    position = content.write_count
    segments = []
    for frames, first in _walk_back(directory, name, folder_of):
        if first < position:
            end = position - first
            older = max(oldest - first, 0)  # overwritten since
            segments.append({key: tensor[older:end] for key, tensor in frames.items()})
            position = first
        if position <= oldest:
            break
    content.segments = segments[::-1]
    return content


def _walk_back(
    directory: Path, name: str, folder_of: FolderOf | None
) -> Iterator[tuple[Frames, int]]:
    """Yield a buffer's frames of each stage and their first index, from the last stage back."""
    stage_folder: Path | None = directory
    while stage_folder is not None:
        entry = _read_values(stage_folder)["buffers"][name]
        path = frames_file(stage_folder, name)
        yield (load_file(path) if path.is_file() else {}), entry["first"]
        before = entry["before"]
        if before is not None and folder_of is None:
            raise StateError(
                f"the state in {stage_folder} refers to the stage {before}, which cannot be found"
                " without a store. Load the state from its store."
            )
        stage_folder = None if before is None or folder_of is None else folder_of(before)


def _same_content(one: ReplayContent, other: ReplayContent) -> bool:
    if (one.write_count, one.size) != (other.write_count, other.size):
        return False
    return same_trees(one.joined(), other.joined())
