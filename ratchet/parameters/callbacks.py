"""How an experiment asks for callbacks: in the list ``callbacks``, or by a section of their own.

What a callback's own parameters are is known once its class is found, which may lie in a file
beside the experiment's: see :mod:`trainers.callbacks.registry`.
"""

from __future__ import annotations

from ratchet.parameters.base import SubParameters
from ratchet.parameters.purposes import Purpose


class CallbackSection(SubParameters, read_for=Purpose.NOTHING):
    """A section that, once enabled, asks for the callback of its own name.

    Its fields are read for nothing: the callback says itself in which stages' keys it is.
    """

    enabled: bool = False
