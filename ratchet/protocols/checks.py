"""Whether the common protocol parameters fit the protocol and the scenario.

Used by the registry when a protocol is built and when parameters are checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.errors import ParameterError, nearest
from ratchet.parameters.agents import DEFAULT_AGENT

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.handler import ProtocolHandler

USUAL_AGENT_NAMES = (
    "prover",
    "prover0",
    "prover1",
    "prover2",
    "verifier",
    "adversarial_verifier",
    "simulator",
)
"""Agents of other protocols may have parameters too: an arm may play another protocol."""


def check_agent_names(hyper_params: HyperParameters, handler: ProtocolHandler) -> None:
    """Refuse parameters of an agent that no protocol knows: a slip of the pen would do nothing.

    So would one in a schedule that names agents.

    Raises
    ------
    ParameterError
        With the nearest name.
    """
    known = {*handler.agent_names, *USUAL_AGENT_NAMES}
    named = [(f"agents.{name}", name) for name in hyper_params.agents.named]
    for agent in hyper_params.agents:
        in_schedule = hyper_params.agents[agent].update_schedule.agent_names
        named += [(f"agents.{agent}.update_schedule: {name!r}", name) for name in in_schedule]
    for where, name in named:
        if name not in known:
            raise ParameterError(
                f"{where}: protocol {hyper_params.interaction_protocol!r} has no such agent;"
                f" expected one of {list(handler.agent_names)}.{nearest(name, known)}"
            )


def check_common_parameters(hyper_params: HyperParameters, handler: ProtocolHandler) -> None:
    """Check ``protocol_common`` against a protocol, not yet in its zero-knowledge version.

    Raises
    ------
    ParameterError
        With the dotted path, what it got and what it expected.
    """
    common = hyper_params.protocol_common
    is_text = hyper_params.agents[DEFAULT_AGENT].is_text
    protocol = f"protocol {hyper_params.interaction_protocol!r}"
    scenario = f"scenario {hyper_params.scenario!r}"
    if common.randomize_prover_stance and not (is_text and len(handler.prover_names) == 1):
        raise ParameterError(
            f"protocol_common.randomize_prover_stance: got True with {scenario} and {protocol},"
            f" whose provers are {list(handler.prover_names)}; expected a text scenario and a"
            " protocol with a single prover. Set it to false, or change the scenario or protocol."
        )
    for name in ("verifier_decision_scale", "invalid_response_penalty"):
        given, default = getattr(common, name), type(common).model_fields[name].default
        if not is_text and given != default:
            raise ParameterError(
                f"protocol_common.{name}: got {given!r} with {scenario}; expected a text scenario,"
                f" since no other has replies in words. Set it to {default!r}."
            )
    if common.verifier_decision_scale != "accept_reject" and len(handler.verifier_names) != 1:
        raise ParameterError(
            f"protocol_common.verifier_decision_scale: got {common.verifier_decision_scale!r} with"
            f" {protocol}, whose verifiers are {list(handler.verifier_names)}; expected a single"
            " one, whose confidence pays. Set it to 'accept_reject'."
        )
    if common.zero_knowledge and list(handler.verifier_names) != ["verifier"]:
        raise ParameterError(
            f"protocol_common.zero_knowledge: got True with {protocol}, whose verifiers are"
            f" {list(handler.verifier_names)}; expected a protocol with the one verifier"
            " 'verifier'. Set it to false, or change the protocol."
        )
    if common.zero_knowledge and is_text:
        raise ParameterError(
            f"protocol_common.zero_knowledge: got True with {scenario}, which is a text scenario;"
            " expected a tensor scenario, since it compares logits. Set it to false."
        )
