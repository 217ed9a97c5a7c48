"""How an experiment asks for a class: by name or file, with the parameters that it is made with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict

from ratchet.parameters.base import SubParameters


class Reference(SubParameters):
    """A class by name, or by ``path/to/file.py:ClassName``; beside it the parameters it has.

    The path starts from the folder of the experiment file. Of it only the class name belongs to a
    stage's key; the file's content is in the code fingerprint.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    @property
    def given(self) -> Mapping[str, Any]:
        """What stands beside the name."""
        return {key: value for key, value in self.to_dict().items() if key != "name"}


def named(value: object) -> object:
    """Let a name alone stand for a reference without parameters."""
    return {"name": value} if isinstance(value, str) else value


References = tuple[Annotated[Reference, BeforeValidator(named)], ...]
"""A list of classes; a name alone stands for one with its defaults."""
