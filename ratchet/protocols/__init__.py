"""Interaction protocols: who speaks, where, when, and who is paid.

Names are imported on first use; inside Ratchet the concrete modules are imported, so that an
edit of one protocol leaves the code fingerprints of the others alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet.protocols.base import (
        DeterministicSingleVerifierProtocolHandler,
        ProtocolHandler,
        SingleVerifierProtocolHandler,
    )
    from ratchet.protocols.registry import build_protocol_handler, register_protocol_handler

__all__ = [
    "DeterministicSingleVerifierProtocolHandler",
    "ProtocolHandler",
    "SingleVerifierProtocolHandler",
    "build_protocol_handler",
    "register_protocol_handler",
]

_HOMES = {
    "DeterministicSingleVerifierProtocolHandler": "ratchet.protocols.base",
    "ProtocolHandler": "ratchet.protocols.base",
    "SingleVerifierProtocolHandler": "ratchet.protocols.base",
    "build_protocol_handler": "ratchet.protocols.registry",
    "register_protocol_handler": "ratchet.protocols.registry",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 -- a module attribute of any type
    """Import a public name from the module it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ratchet.protocols' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
