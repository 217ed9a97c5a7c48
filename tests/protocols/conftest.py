"""Handlers built from parameters, for all tests of protocols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ratchet import HyperParameters
from ratchet.protocols.handler import ProtocolHandler
from ratchet.protocols.registry import build_protocol_handler


def _parameters(protocol: str, **changes: Any) -> HyperParameters:
    """Dotted paths are written with two underscores: ``nip_protocol__max_message_rounds=4``."""
    hyper_params = HyperParameters(
        scenario="graph_isomorphism",
        trainer="vanilla_ppo",
        dataset="generated",
        interaction_protocol=protocol,
    )
    return hyper_params.replace({key.replace("__", "."): v for key, v in changes.items()})


def _handler(protocol: str, **changes: Any) -> ProtocolHandler:
    return build_protocol_handler(_parameters(protocol, **changes))


@pytest.fixture(scope="session")
def make_parameters() -> Callable[..., HyperParameters]:
    return _parameters


@pytest.fixture(scope="session")
def make_handler() -> Callable[..., ProtocolHandler]:
    return _handler
