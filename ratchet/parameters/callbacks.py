"""How an experiment asks for callbacks: in the list ``callbacks``, or by a section of their own.

What a callback's own parameters are is known once its class is found, which may lie in a file
beside the experiment's: see :mod:`trainers.callbacks.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict

from ratchet.parameters.base import SubParameters
from ratchet.parameters.purposes import Purpose


class CallbackReference(SubParameters):
    """A callback by name, or by ``path/to/file.py:ClassName``; beside it the parameters it has.

    The path starts from the folder of the experiment file. Of it only the class name belongs to a
    stage's key; the file's content is in the code fingerprint.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    @property
    def given(self) -> Mapping[str, object]:
        """What stands beside the name."""
        return {key: value for key, value in self.to_dict().items() if key != "name"}


def _named(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


CallbackReferences = tuple[Annotated[CallbackReference, BeforeValidator(_named)], ...]
"""What the list ``callbacks`` holds; a name alone stands for a callback with its defaults."""


class CallbackSection(SubParameters, read_for=Purpose.NOTHING):
    """A section that, once enabled, asks for the callback of its own name.

    Its fields are read for nothing: the callback says itself in which stages' keys it is.
    """

    enabled: bool = False
