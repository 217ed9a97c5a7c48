"""How an experiment asks for callbacks: in the list ``callbacks``, or by a section of their own.

What a callback's own parameters are is known once its class is found, which may lie in a file
beside the experiment's: see :mod:`trainers.callbacks.registry`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from ratchet.parameters.base import SubParameters
from ratchet.parameters.purposes import Purpose
from ratchet.parameters.references import Reference, named


class CallbackReference(Reference):
    """A callback by name or file; see :class:`Reference`."""


CallbackReferences = tuple[Annotated[CallbackReference, BeforeValidator(named)], ...]
"""What the list ``callbacks`` holds; a name alone stands for a callback with its defaults."""


class CallbackSection(SubParameters, read_for=Purpose.NOTHING):
    """A section that, once enabled, asks for the callback of its own name.

    Its fields are read for nothing: the callback says itself in which stages' keys it is.
    """

    enabled: bool = False
