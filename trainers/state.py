"""``State`` of trainers with a custom loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from ratchet.errors import CheckPointNotFoundError, StateError

STATE_NAME = "own"
"""Base name of the files of such a state, next to the agents' weights."""


@dataclass
class State:
    """State from which a custom loop continues, in addition to its agents' weights.

    Subclasses, which must be dataclasses too, add the fields that the loop needs, each with a
    default: numbers, texts, tensors, arrays, and lists and mappings of these, such as an
    optimizer's ``state_dict()``.
    """

    iteration: int = 0
    """The number of finished training iterations."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name; tensors are not copied."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the state of :meth:`to_dict`'s result; StateError if its fields differ."""
        expected = {field.name for field in fields(cls)}
        if content.keys() != expected:
            raise StateError(
                f"state: got the fields {sorted(content)}, expected {sorted(expected)}. It was"
                " saved by another version of the trainer; train from scratch."
            )
        return cls(**content)

    def save(self, directory: str | Path) -> None:
        """Write the state into a folder, created if missing.

        Raises StateError if a field contains a value that cannot be written without pickle.
        """
        from trainers.state_tree import save_tree

        save_tree(self.to_dict(), Path(directory), STATE_NAME)

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """Read a state that :meth:`save` wrote.

        Raises CheckPointNotFoundError if the folder has none, and StateError if it cannot be read
        or has other fields.
        """
        from trainers.state_tree import load_tree

        try:
            content = load_tree(Path(directory), STATE_NAME)
        except CheckPointNotFoundError as error:
            raise CheckPointNotFoundError(
                f"{error} The state of another kind of trainer cannot be resumed; its agents"
                " can be loaded with agents.NAME.load_checkpoint_and_parameters."
            ) from error
        return cls.from_dict(content)
