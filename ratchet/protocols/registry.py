"""Registry of protocols by name, and construction of their handlers.

Only the requested protocol is imported, and none to list their names; ``zero_knowledge`` wraps any
of them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ratchet.registry import Registry

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.protocols import ProtocolCommonParameters
    from ratchet.protocols.handler import ProtocolHandler

_Handler = TypeVar("_Handler", bound="type[ProtocolHandler]")

PROTOCOLS: Registry[ProtocolHandler] = Registry(
    "protocol",
    "ratchet.protocols.handler:ProtocolHandler",
    "ratchet.protocols",
    parameter="interaction_protocol",
)


def register_protocol_handler(name: str) -> Callable[[_Handler], _Handler]:
    """Register a protocol under a name, for ``interaction_protocol`` in experiment files.

    Raises ParameterError if another class has the name.
    """
    return PROTOCOLS.register(name)


def protocol_handler_class(name: str, *, base_dir: Path | None = None) -> type[ProtocolHandler]:
    """Return the class of a registered name, or of ``path/to/file.py:ClassName``.

    Such a path starts from ``base_dir``, the working folder if not given.
    """
    return PROTOCOLS.find(name, base_dir)


def has_usual_agents(name: object) -> bool:
    """Return whether a protocol's agents are named as usual, importing none."""
    return PROTOCOLS.built_in.get(str(name), "").startswith("ratchet.protocols.")


def check_protocol_name(name: str) -> None:
    """Check that a protocol of that name exists, importing none."""
    PROTOCOLS.check(name)


def playing_agents(hyper_params: HyperParameters, base_dir: Path | None = None) -> dict[str, Any]:
    """Return the parameters of the protocol's agents, of the scenario's class.

    ``agents._default`` is not one of them. Errors as for :func:`build_protocol_handler`.
    """
    names = build_protocol_handler(hyper_params, base_dir=base_dir).agent_names
    return {name: hyper_params.agents[name] for name in names}


def build_protocol_handler(
    hyper_params: HyperParameters, *, base_dir: Path | None = None
) -> ProtocolHandler:
    """Build the handler of the experiment's ``interaction_protocol``.

    With ``protocol_common.zero_knowledge`` it is played in its zero-knowledge version. The path of
    a user's protocol starts from ``base_dir``.

    Raises
    ------
    UnknownNameError, ParameterError
        If there is no such protocol, or it doesn't fit the other parameters.
    ProtocolSpecificationError
        If the protocol contradicts itself.
    """
    from ratchet.protocols.checks import check_agent_names, check_common_parameters

    handler_class = protocol_handler_class(hyper_params.interaction_protocol, base_dir=base_dir)
    handler: ProtocolHandler = handler_class.build(hyper_params, base_dir)
    check_agent_names(hyper_params, handler)
    check_common_parameters(hyper_params, handler)
    if not hyper_params.protocol_common.zero_knowledge:
        return handler
    # Not a plain import, which would add the module to the code fingerprints of all protocols;
    # `source_classes` adds it to those of protocols that use it.
    zero_knowledge = import_module(f"{__package__}.zero_knowledge")
    wrapped: ProtocolHandler = zero_knowledge.ZeroKnowledgeProtocolHandler.around(handler)
    return wrapped


def check_protocol_parameters(
    hyper_params: HyperParameters, *, base_dir: Path | None = None
) -> None:
    """Check all parameters of the protocol with as few imports as possible.

    The protocol itself is imported only if its agents matter.
    """
    check_protocol_name(hyper_params.interaction_protocol)
    common = hyper_params.protocol_common
    if common.randomize_prover_stance or common.zero_knowledge or _speaks(common):
        build_protocol_handler(hyper_params, base_dir=base_dir)


def _speaks(common: ProtocolCommonParameters) -> bool:
    """Return whether a parameter is set that only text scenarios read."""
    default = type(common)()
    return (common.verifier_decision_scale, common.invalid_response_penalty) != (
        default.verifier_decision_scale,
        default.invalid_response_penalty,
    )
