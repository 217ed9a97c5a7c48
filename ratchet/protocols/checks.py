"""Checks of the common protocol parameters against the protocol and the scenario.

Used by the registry when a protocol is built and when parameters are checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from ratchet.errors import ParameterError, ProtocolSpecificationError, nearest
from ratchet.parameters.agents import DEFAULT_AGENT, Schedule, UpdateSchedule
from ratchet.parameters.reading.messages import raise_together

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.handler import ProtocolHandler
    from ratchet.protocols.text_specs import TextAgentSpec

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
_SCHEDULE: TypeAdapter[Schedule] = TypeAdapter(UpdateSchedule)


def check_agent_names(hyper_params: HyperParameters, handler: ProtocolHandler) -> None:
    """Refuse parameters of unknown agents, since a typing error would have no effect.

    Also checks the agents that update schedules name.
    """
    agents = hyper_params.agents
    schedules = {name: agents[name].update_schedule for name in agents}
    problem = f"protocol {hyper_params.interaction_protocol!r} has no such agent"
    raise_together(_unknown(problem, handler.agent_names, agents.named, schedules))


def unknown_agents(agents: Mapping[str, object]) -> list[ParameterError]:
    """Return an error for each agent that no built-in protocol has, without imports.

    ``agents`` are as in a file, which may have other errors.
    """
    schedules: dict[str, Schedule] = {}
    for name, agent in agents.items():
        if isinstance(agent, Mapping) and "update_schedule" in agent:
            with suppress(ValidationError):  # reported by the section's own validation
                schedules[name] = _SCHEDULE.validate_python(agent["update_schedule"])
    named = [name for name in agents if name != DEFAULT_AGENT]
    return _unknown("no protocol has such an agent", USUAL_AGENT_NAMES, named, schedules)


def _unknown(
    problem: str,
    expected: Sequence[str],
    named: Iterable[str],
    schedules: Mapping[str, Schedule],
) -> list[ParameterError]:
    """Return an error for each agent that is named, also by a schedule, and not known."""
    mentions = [(f"agents.{name}", name) for name in named]
    for agent, schedule in schedules.items():
        mentions += [
            (f"agents.{agent}.update_schedule: {name!r}", name) for name in schedule.agent_names
        ]
    known = {*expected, *USUAL_AGENT_NAMES}
    return [
        ParameterError(
            f"{where}: {problem}; expected one of {list(expected)}.{nearest(name, known)}"
        )
        for where, name in mentions
        if name not in known
    ]


def check_common_parameters(hyper_params: HyperParameters, handler: ProtocolHandler) -> None:
    """Check ``protocol_common`` against a protocol, not yet in its zero-knowledge version."""
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
        option, default = getattr(common, name), type(common).model_fields[name].default
        if not is_text and option != default:
            raise ParameterError(
                f"protocol_common.{name}: got {option!r} with {scenario}; expected a text scenario,"
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


def check_text_specs(handler: ProtocolHandler) -> dict[str, TextAgentSpec]:
    """Return and check a protocol's specs of its agents in text scenarios."""
    specs = {name: handler.text_agent_spec(name) for name in handler.agent_names}
    names = [spec.human_name for spec in specs.values()]
    if len(set(names)) != len(names):
        raise ProtocolSpecificationError(
            f"{type(handler).__name__}.text_agent_spec: got the human names {names}, expected no"
            " two the same."
        )
    paid = getattr(handler, "prover_paid_decisions", {})  # of protocols with one verifier
    for name, spec in specs.items():
        _check_headers(handler, name, spec)
        if spec.argued_decision is not None and name not in paid:
            raise ProtocolSpecificationError(
                f"{type(handler).__name__}.text_agent_spec({name!r}).argued_decision: expected"
                " None, since only agents that are rewarded for a decision of the verifier choose"
                f" a side: {list(paid)}."
            )
    return specs


def _check_headers(handler: ProtocolHandler, agent: str, spec: TextAgentSpec) -> None:
    """Check that the agent can always reply, with a header for each channel."""
    where = f"{type(handler).__name__}.text_agent_spec({agent!r}).headers"
    unknown = set(spec.headers) - set(handler.message_channel_names)
    if unknown:
        raise ProtocolSpecificationError(
            f"{where}: unknown channels {sorted(unknown)}, expected channels of"
            f" {list(handler.message_channel_names)}."
        )
    acts = handler.can_be_active_mask[:, handler.agent_index(agent)]
    channels = zip(handler.message_channel_names, acts.any(0).tolist(), strict=True)
    missing = [name for name, can_act in channels if can_act and name not in spec.headers]
    if not missing:
        return
    only_decides = agent in handler.verifier_names and not spec.headers
    if not only_decides:
        raise ProtocolSpecificationError(
            f"{where}: got none for {missing}, where the agent can write; expected one each."
        )
    mute = acts[: handler.min_message_rounds - 1].any(-1).nonzero().flatten().tolist()
    if mute:
        raise ProtocolSpecificationError(
            f"{where}: got none, but in round {mute[0]} the agent acts and may not decide yet"
            f" (min_message_rounds={handler.min_message_rounds}), so it would have no valid reply."
            " Give it headers, or lower min_message_rounds."
        )
