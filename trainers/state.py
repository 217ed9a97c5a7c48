"""``State``: what a trainer with a loop of its own continues from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from ratchet.errors import CheckPointNotFoundError, StateError

STATE_NAME = "own"
"""What the files of such a state are called; the agents' weights lie beside them."""


@dataclass
class State:
    """What a trainer with a loop of its own continues from, beside its agents' weights.

    A subclass, a dataclass too, adds what the loop needs: numbers, texts, tensors, arrays, lists
    and mappings of these, such as an optimizer's ``state_dict()``; each with a default.
    """

    iteration: int = 0
    """The number of finished training iterations."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name; tensors are the state's own."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Make a state of what :meth:`to_dict` gave; StateError if it has other fields."""
        expected = {field.name for field in fields(cls)}
        if content.keys() != expected:
            raise StateError(
                f"state: got the fields {sorted(content)}, expected {sorted(expected)}. It is of"
                " another version of the trainer; train anew."
            )
        return cls(**content)

    def save(self, directory: str | Path) -> None:
        """Write the state into a folder, made if need be.

        Raises StateError if a field holds what cannot be written without pickle.
        """
        from trainers.state_tree import save_tree

        save_tree(self.to_dict(), Path(directory), STATE_NAME)

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """Read a state that :meth:`save` wrote.

        Raises CheckPointNotFoundError if there is none in the folder, and StateError if it cannot
        be read or has other fields.
        """
        from trainers.state_tree import load_tree

        try:
            content = load_tree(Path(directory), STATE_NAME)
        except CheckPointNotFoundError as error:
            raise CheckPointNotFoundError(
                f"{error} A state of another kind of trainer cannot be continued from; its agents"
                " can be taken with agents.NAME.load_checkpoint_and_parameters."
            ) from error
        return cls.from_dict(content)
