"""Resolve the phases of an experiment to complete parameters for each phase.

A phase has the experiment's parameters except for its changes; iterations are counted across
phases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from ratchet.errors import ParameterError, RatchetError, nearest, shown
from ratchet.parameters.agents import DEFAULT_AGENT
from ratchet.parameters.base import SECTIONS
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.protocols import LongProtocolParameters
from ratchet.parameters.purposes import Purpose, declared_purposes
from ratchet.parameters.reading.deep_merge import change_every_agent, merge_agent, merge_changes

if TYPE_CHECKING:
    from ratchet.parameters.phases import PhaseParameters

_LEARNING = {Purpose.LEARNING, Purpose.FINE_TUNING, Purpose.SPEECH}
_CHANGEABLE = _LEARNING | {Purpose.CRITIC, Purpose.GAME}
_OF_ALL_PHASES = (
    *("language.engine", "language.mode", "language.train_service"),
    "on_policy_distillation.teacher",
)
"""Code, files and processes that stages of all phases share."""
_AMOUNTS = (
    *("rl.frames_per_batch", "rl.rollouts_per_iteration", "rl.steps_per_env_per_iteration"),
    "text_rl.rollouts_per_datapoint",
)
"""Amounts of sampling, which do not affect the networks."""
_FLAGS = {"hand_made": "use_manual_architecture", "random": "is_random"}
_ROUNDS = {
    "min_message_rounds": "min_message_rounds",
    "max_message_rounds": "played_message_rounds",
}


@dataclass(frozen=True, eq=False)
class Phase:
    """One phase of an experiment's training.

    Attributes
    ----------
    hyper_params
        Its complete parameters; the number of iterations is the phase's.
    start, stop
        Its first iteration, and the one after its last, in the count of the experiment.
    learners
        The agents that learn.
    replaced
        The agents that others replace; their weights stay unchanged.
    fresh
        The agents that start with their first weights again.
    pools
        Agent → the iterations after which its policy entered the pool.
    """

    name: str
    hyper_params: HyperParameters
    start: int
    stop: int
    learners: tuple[str, ...]
    replaced: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    pools: Mapping[str, tuple[int, ...]] | None = None


def read_phases(hyper_params: HyperParameters, agent_names: Sequence[str]) -> tuple[Phase, ...]:
    """Resolve the phases of an experiment whose protocol has these agents."""
    phases: list[Phase] = []
    for phase in hyper_params.phases:
        start = phases[-1].stop if phases else 0
        _check_names(hyper_params, phase, agent_names)
        learners = _learners(hyper_params, phase, agent_names)
        phases.append(
            Phase(
                name=phase.name,
                hyper_params=_parameters_of(hyper_params, phase, learners),
                start=start,
                stop=start + phase.num_iterations,
                learners=learners,
                replaced=tuple(n for n, each in phase.partners.items() if each.kind != "frozen"),
                fresh=phase.fresh,
                pools=dict(_pools(phase, phases)),
            )
        )
    return tuple(phases)


def _learners(
    base: HyperParameters, phase: PhaseParameters, agent_names: Sequence[str]
) -> tuple[str, ...]:
    where = f"phases.{phase.name}"
    fixed = {
        name: parameter
        for name in agent_names
        if (parameter := base.agents[name].never_learns_by()) is not None
    }
    learners = phase.learners
    if learners is None:
        learners = tuple(n for n in agent_names if n not in phase.partners and n not in fixed)
    for name in learners:
        if name in fixed:
            raise ParameterError(
                f"{where}.learners: {name!r} cannot learn, since agents.{name}.{fixed[name]} is"
                f" {shown(getattr(base.agents[name], fixed[name]))}. Change that, or leave it out."
            )
    if not learners:
        raise ParameterError(
            f"{where}.learners: no agent learns in this phase, expected one or more of"
            f" {list(agent_names)}. Leave the phase out, or name its learners."
        )
    both = [name for name in learners if name in phase.partners]
    if both:
        raise ParameterError(
            f"{where}.partners.{both[0]}: got {phase.partners[both[0]].kind!r} for an agent that"
            " learns in this phase, expected one that does not. Leave it out here or there."
        )
    return learners


def _check_names(base: HyperParameters, phase: PhaseParameters, agent_names: Sequence[str]) -> None:
    """Refuse agents that are not in the protocol, and models without weights as fresh."""
    for name in phase.fresh:
        agent = base.agents[name]
        if agent.learns_tokens and (parameter := agent.never_learns_by()) is not None:
            raise ParameterError(
                f"phases.{phase.name}.fresh: {name!r} has no weights, since agents.{name}."
                f"{parameter} is {shown(getattr(agent, parameter))}. Leave it out."
            )
    locations = [(f"learners: {name!r}", name) for name in phase.learners or ()]
    locations += [(f"partners.{name}", name) for name in phase.partners]
    locations += [(f"fresh: {name!r}", name) for name in phase.fresh]
    changed = _changed_agents(phase)
    locations += [(f"changes.agents.{name}", name) for name in changed if name != DEFAULT_AGENT]
    for location, name in locations:
        if name not in agent_names:
            raise ParameterError(
                f"phases.{phase.name}.{location}: the protocol has no such agent, expected one of"
                f" {list(agent_names)}.{nearest(name, agent_names)}"
            )


def _changed_agents(phase: PhaseParameters) -> list[str]:
    """Return the names of the changed agents; refuse values that are not agents' parameters."""
    changed = phase.changes.get("agents", {})
    parts: dict[str, object] = {"agents": changed}
    if isinstance(changed, Mapping):
        parts |= {f"agents.{name}": value for name, value in changed.items()}
    for path, value in parts.items():
        if not isinstance(value, Mapping):
            raise ParameterError(
                f"phases.{phase.name}.changes.{path}: got {value!r}, expected parameters of agents,"
                " such as agents.NAME.body_lr_factor."
            )
    return [str(name) for name in changed]


def _pools(
    phase: PhaseParameters, earlier: Sequence[Phase]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the agents that are sampled from a pool, with the iterations of its members."""
    for name, partner in phase.partners.items():
        if partner.kind != "pool":
            continue
        where = f"phases.{phase.name}.partners.{name}"
        learned = {each.name: each for each in earlier if name in each.learners}
        if not learned:
            raise ParameterError(
                f"{where}: got a pool of its earlier selves, but it learns in no phase before this"
                " one, expected one or more. Use 'frozen' instead, or let it learn before."
            )
        for phase_name in partner.phases or ():
            if phase_name not in learned:
                raise ParameterError(
                    f"{where}.phases: got {phase_name!r}, expected phases before this one in which"
                    f" it learns: {list(learned)}.{nearest(phase_name, list(learned))}"
                )
        members: set[int] = set()
        for each in learned.values():
            if partner.phases is None or each.name in partner.phases:
                step = partner.every or each.stop - each.start
                members |= {*range(each.start + step, each.stop, step), each.stop}
        yield name, tuple(sorted(members))


def _parameters_of(
    base: HyperParameters, phase: PhaseParameters, learners: Collection[str]
) -> HyperParameters:
    """Return a phase's parameters: the experiment's with its changes."""
    where = f"phases.{phase.name}"
    for path in _leaves(phase.changes):
        _check_change(base, path, f"{where}.changes.{path}", learners)
    data = base.to_dict()
    del data["phases"]
    data = merge_changes(change_every_agent(data, phase.changes), phase.changes)
    data["rl"] = {**data["rl"], "num_iterations": phase.num_iterations}
    data = _with_rounds(data, base, phase)
    data["agents"] = _agents_of(base, phase, learners, data["agents"])
    redraws = data["pure_text_grpo"]["redraws"]  # unused for agents that do not learn, but billed
    redraws = {name: number for name, number in redraws.items() if name in learners}
    data["pure_text_grpo"] = {**data["pure_text_grpo"], "redraws": redraws}
    try:
        return HyperParameters.from_dict(data)
    except RatchetError as error:
        lines = str(error).splitlines()
        raise type(error)("\n".join(f"{where}.changes.{line}" for line in lines)) from error


def _agents_of(
    base: HyperParameters,
    phase: PhaseParameters,
    learners: Collection[str],
    changed: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the agents' parameters: only learners learn, and partners have their kinds."""
    off = {
        "kind": "alternating_blocks",
        "blocks": [{"agents": sorted(learners), "num_iterations": 1}],
    }
    agents: dict[str, Any] = {}
    default = changed[DEFAULT_AGENT]
    for name in dict.fromkeys((*changed, *learners, *phase.partners)):
        agent = merge_agent(default, changed.get(name, {}), default.keys())
        if name not in learners and not base.agents[name].learns_tokens:
            agent["update_schedule"] = off
        partner = phase.partners.get(name)
        if partner is not None and partner.kind in _FLAGS:
            if base.agents[name].learns_tokens or base.agents[name].is_text:
                raise ParameterError(
                    f"phases.{phase.name}.partners.{name}: got {partner.kind!r} for a language"
                    " model, expected 'frozen' or 'pool'. If it is trained here, model: random"
                    " replaces it in all phases."
                )
            agent |= dict.fromkeys(_FLAGS.values(), False)
            agent |= {_FLAGS[partner.kind]: True, "load_checkpoint_and_parameters": False}
        agents[name] = agent
    return agents


def _with_rounds(
    data: dict[str, Any], base: HyperParameters, phase: PhaseParameters
) -> dict[str, Any]:
    """Bound the rounds of the protocol."""
    bounds = {name: getattr(phase, name) for name in _ROUNDS if getattr(phase, name) is not None}
    if not bounds:
        return data
    protocol = base.interaction_protocol
    name = next(
        (
            section.name
            for section in SECTIONS.values()
            if protocol in section.protocols and issubclass(section.model, LongProtocolParameters)
        ),
        None,
    )
    first = f"phases.{phase.name}.{next(iter(bounds))}"
    if name is None:
        raise ParameterError(
            f"{first}: got {next(iter(bounds.values()))} with the protocol {protocol!r}, which has"
            " no bounds on its rounds. Leave it out."
        )
    section = getattr(base, name)
    max_rounds = section.max_message_rounds
    low = bounds.get("min_message_rounds", section.min_message_rounds)
    high = bounds.get("max_message_rounds", section.played_message_rounds or max_rounds)
    if not low <= high <= max_rounds:
        raise ParameterError(
            f"{first}: expected min_message_rounds <= max_message_rounds <= {max_rounds}, the"
            f" experiment's {name}.max_message_rounds, for which its networks are made; got {low}"
            f" and {high}."
        )
    changed = {**data[name], **{_ROUNDS[bound]: value for bound, value in bounds.items()}}
    return {**data, name: changed}


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted paths of changed parameters, down to three levels."""
    for name, value in data.items():
        path = f"{prefix}{name}"
        deepest = 3 if path.startswith("agents.") else 2
        if isinstance(value, Mapping) and path.count(".") + 1 < deepest:
            yield from _leaves(value, f"{path}.")
        else:
            yield path


def _check_change(base: HyperParameters, path: str, where: str, learners: Collection[str]) -> None:
    """Refuse changes of parameters that must be the same in all phases."""
    section, _, field = path.partition(".")
    if section == "agents":
        _check_agent_change(base, field, where, learners)
        return
    if path == "rl.num_iterations":
        raise ParameterError(f"{where}: set the phase's num_iterations, outside changes.")
    if section not in SECTIONS or not field:
        raise ParameterError(
            f"{where}: must be the same in all phases, expected parameters of learning or acting,"
            " such as rl.lr. Change it for all phases."
        )
    if path in _OF_ALL_PHASES:
        raise ParameterError(
            f"{where}: must be the same in all phases. Change {path} for the experiment."
        )
    if field in _ROUNDS.values() or field == "max_message_rounds":
        raise ParameterError(
            f"{where}: networks are built for the experiment's rounds. Bound those of a phase"
            " with its min_message_rounds and max_message_rounds, outside changes."
        )
    purposes = SECTIONS[section].purposes.get(field, frozenset(_CHANGEABLE))  # if undeclared
    if path not in _AMOUNTS and (Purpose.DATA in purposes or not purposes & _CHANGEABLE):
        what = ", ".join(sorted(purpose.value for purpose in purposes))
        raise ParameterError(
            f"{where}: is read for {what}, which must be the same in all phases, expected"
            " parameters of learning or acting, such as rl.lr. Change it for all phases."
        )


def _check_agent_change(
    base: HyperParameters, path: str, where: str, learners: Collection[str]
) -> None:
    name, _, field = path.partition(".")
    if field in _FLAGS.values():
        kind = next(kind for kind, flag in _FLAGS.items() if flag == field)
        raise ParameterError(f"{where}: set `partners: {{{name}: {kind}}}` instead.")
    if field in ("freeze_agent", "fine_tuning_service"):
        raise ParameterError(
            f"{where}: must be the same in all phases. Change it for the experiment; the phase's"
            " learners decide which models are fine-tuned."
        )
    if field == "update_schedule" and name not in (*learners, DEFAULT_AGENT):
        raise ParameterError(f"{where}: {name!r} does not learn in this phase. Leave it out.")
    model: type[BaseModel] = type(base.agents[name])
    purposes = declared_purposes(model).get(field)
    if purposes is not None and not purposes & _LEARNING:
        raise ParameterError(
            f"{where}: affects the agent's network or model, which must be the same in all phases,"
            " expected how it learns or speaks, such as body_lr_factor."
        )
