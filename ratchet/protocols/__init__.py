"""Interaction protocols: who speaks, where, when, and who is paid.

Names are imported on first use; inside Ratchet the concrete modules are imported, so that an
edit of one protocol leaves the code fingerprints of the others alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

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


__getattr__ = lazy_names(__name__, _HOMES)

BUILT_IN = {
    "adp": "ratchet.protocols.adp",
    "debate": "ratchet.protocols.debate",
    "environment": "ratchet.scenarios.environment_protocol",
    "merlin_arthur": "ratchet.protocols.merlin_arthur",
    "mnip": "ratchet.protocols.mnip",
    "multi_channel_test": "ratchet.protocols.multi_channel_test",
    "nip": "ratchet.protocols.nip",
    "solo_verifier": "ratchet.protocols.solo_verifier",
}
"""Name → the module that registers it."""
