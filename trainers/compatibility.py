"""Checks that trainer, scenario, protocol and options are compatible.

Called by runs, plans and sweeps before any component is built. Checks that concern one side only
are delegated: to protocols, and to trainers (:meth:`Trainer.check_parameters`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import ParameterError, ProtocolSpecificationError, RatchetError, nearest
from ratchet.parameters.agents import DEFAULT_AGENT
from ratchet.parameters.compatibility.torchrl_names import refuse_not_run
from ratchet.parameters.curriculum import read_phases
from ratchet.parameters.reading.discovery import agent_model
from ratchet.parameters.text_trainers import count_rollouts
from ratchet.protocols.registry import build_protocol_handler, check_protocol_name
from ratchet.scenarios.registry import build_scenario
from trainers.callbacks.registry import callback_specs, check_callbacks
from trainers.registry import TRAINERS, trainer_class
from trainers.staged import runs_in_stages
from trainers.text.components import has_text_stages

if TYPE_CHECKING:
    from ratchet.parameters.curriculum import Phase
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.handler import ProtocolHandler
    from trainers.base import Trainer

ENVIRONMENT = "environment"
"""The protocol of scenarios whose environments define their own rules."""
SIMULATORS = "gymnasium"
"""The scenario of environments whose agents are networks."""


def check_combination(hyper_params: HyperParameters, base_dir: str | Path | None = None) -> None:
    """Refuse parameters whose names exist but are incompatible.

    Paths to plug-ins start from ``base_dir``. Raises ParameterError with both sides and a
    compatible choice.
    """
    folder = None if base_dir is None else Path(base_dir)
    check_protocol_name(hyper_params.interaction_protocol)
    _check_environment(hyper_params)
    handler = build_protocol_handler(hyper_params, base_dir=folder)
    if hyper_params.agents[DEFAULT_AGENT].is_text:
        _check_text(hyper_params, handler)
    trainer = trainer_class(hyper_params, folder)
    _check_trainer(hyper_params, trainer)
    _check_suites(hyper_params, trainer)
    if hyper_params.scenario == SIMULATORS:
        _check_simulated(hyper_params, trainer, handler)
    if hyper_params.scenario == SIMULATORS and hyper_params.gymnasium.num_test_videos:
        _check_videos(hyper_params, trainer, folder)
    _check_loaded_agents(hyper_params, trainer)
    _check_imitation(hyper_params, trainer, handler, folder)
    _check_compiled(hyper_params)
    check_callbacks(hyper_params, trainer, handler, folder)
    _check_phases(hyper_params, trainer, handler, folder)


def check_names(hyper_params: HyperParameters, base_dir: str | Path | None = None) -> None:
    """Refuse unknown names of trainers and protocols, without importing either.

    Files are not read, even with a ``base_dir``. Raises like :func:`check_combination`.
    """
    check_protocol_name(hyper_params.interaction_protocol)
    if isinstance(hyper_params.trainer, str):
        refuse_not_run(hyper_params.trainer)
        TRAINERS.check(hyper_params.trainer)
    _check_environment(hyper_params)


def plays_environment(hyper_params: HyperParameters) -> bool:
    """Return whether the scenario's environments define their own rules."""
    return getattr(agent_model(hyper_params.scenario), "default_protocol", None) == ENVIRONMENT


def fitting_trainers(hyper_params: HyperParameters, base_dir: Path | None = None) -> list[str]:
    """List the registered trainers that train the agents of an experiment's scenario."""
    names = []
    for name in TRAINERS.names():
        changed = hyper_params.replace({"trainer": name}, base_dir)
        try:
            _check_trainer(changed, trainer_class(changed, base_dir))
        except RatchetError:
            continue
        names.append(name)
    return names


def _check_environment(hyper_params: HyperParameters) -> None:
    is_environment = hyper_params.interaction_protocol == ENVIRONMENT
    if is_environment == plays_environment(hyper_params):
        return
    expected = (
        "a scenario of environments, e.g. gymnasium, or a protocol for agents that exchange"
        " messages, e.g. nip"
        if is_environment
        else f"{ENVIRONMENT!r}, since an environment defines its own rules: leave it out"
    )
    raise ParameterError(
        f"interaction_protocol: got {hyper_params.interaction_protocol!r} with the scenario"
        f" {hyper_params.scenario!r}, expected {expected}."
    )


def _check_compiled(hyper_params: HyperParameters) -> None:
    """Refuse to compile losses of changing sizes, which would be recompiled for each size."""
    if hyper_params.rl.compile_losses and not plays_environment(hyper_params):
        raise ParameterError(
            f"rl.compile_losses: got true with the scenario {hyper_params.scenario!r}, expected"
            " false: agents are computed only where they act, so that sizes differ with every"
            " minibatch. Environments (scenario gymnasium) can be compiled."
        )


def _check_text(hyper_params: HyperParameters, handler: ProtocolHandler) -> None:
    """Refuse protocols without messages, and numbers of rollouts that don't divide evenly."""
    count_rollouts(hyper_params.text_rl, hyper_params.rl.rollouts_per_iteration, num_train=1)
    for name in handler.agent_names:
        try:
            handler.text_agent_spec(name)
        except ProtocolSpecificationError as error:
            raise ParameterError(
                f"interaction_protocol: got {hyper_params.interaction_protocol!r} with the scenario"
                f" {hyper_params.scenario!r}, whose agents are chat models: {error}"
            ) from error


def _check_trainer(hyper_params: HyperParameters, trainer: type[Trainer]) -> None:
    if trainer.traits.acts_alone and not plays_environment(hyper_params):
        raise ParameterError(
            f"trainer: got {hyper_params.trainer_name!r} for the scenario"
            f" {hyper_params.scenario!r}: it builds its own agent, which acts alone in an"
            " environment. Choose another trainer, e.g. vanilla_ppo, or the scenario gymnasium."
        )
    if not plays_environment(hyper_params):
        return
    if trainer.trainer_type == "solo_agent" or hyper_params.pretrain_agents:
        what = (
            "pretrain_agents: got True"
            if hyper_params.pretrain_agents
            else f"trainer: got {hyper_params.trainer_name!r}"
        )
        raise ParameterError(
            f"{what} for the scenario {hyper_params.scenario!r}, which has no labels that an agent"
            " could learn alone. Train by reinforcement learning only."
        )


def _check_suites(hyper_params: HyperParameters, trainer: type[Trainer]) -> None:
    """Refuse evaluation suites without a language model, or never due."""
    suites = hyper_params.evaluation.suites
    if suites and not trainer.traits.learns_tokens:
        raise ParameterError(
            f"evaluation.suites: got {', '.join(suites)} with the trainer"
            f" {hyper_params.trainer_name!r}, expected one of language models that learn from"
            " tokens, e.g. grpo. Leave them out."
        )
    validating = [name for name, suite in suites.items() if suite.when == "validate"]
    if validating and hyper_params.language.validate_every is None:
        raise ParameterError(
            f"evaluation.suites.{validating[0]}.when: got 'validate' without"
            " language.validate_every, expected the number of iterations between validations, or"
            " when: test."
        )


def _check_simulated(
    hyper_params: HyperParameters, trainer: type[Trainer], handler: ProtocolHandler
) -> None:
    """Refuse an environment that only the TorchRL trainers support, or that they do not."""
    from ratchet.scenarios.gymnasium.protocol import SimulatorProtocolHandler

    if not isinstance(handler, SimulatorProtocolHandler):
        return
    if not trainer.traits.acts_alone:
        handler.check_simulated()
    elif getattr(handler.game, "takes_turns", False):
        raise ParameterError(
            f"dataset: got {hyper_params.dataset!r}, whose agents act in turn, with the trainer"
            f" {hyper_params.trainer_name!r}, expected agents that all act in each step. Choose"
            " another trainer, e.g. vanilla_ppo."
        )


def _check_videos(
    hyper_params: HyperParameters, trainer: type[Trainer], folder: Path | None
) -> None:
    """Refuse videos of an environment without rendering, or with a trainer that records none."""
    from ratchet.scenarios.gymnasium.gif_recorder import check_pictures

    if trainer.traits.acts_alone:
        raise ParameterError(
            f"gymnasium.num_test_videos: got {hyper_params.gymnasium.num_test_videos} with the"
            f" trainer {hyper_params.trainer_name!r}, which records no videos, expected 0. Choose"
            " another trainer, e.g. vanilla_ppo."
        )
    check_pictures(hyper_params, folder)


def _check_imitation(
    hyper_params: HyperParameters,
    trainer: type[Trainer],
    handler: ProtocolHandler,
    folder: Path | None,
) -> None:
    """Refuse imitation by unsupported trainers, unknown agents, and agents without weights."""
    imitation, names = hyper_params.imitation, handler.agent_names
    if not imitation.agents:
        return
    got = f"imitation.agents: got {list(imitation.agents)}"
    if not trainer.traits.supports_imitation:
        raise ParameterError(
            f"{got} with the trainer {hyper_params.trainer_name!r}, which does not support"
            " imitation, expected a built-in one that trains networks by reinforcement learning,"
            " e.g. vanilla_ppo, or imitation.agents: []."
        )
    for name in imitation.agents:
        if name not in names:
            raise ParameterError(
                f"{got}, but the protocol {hyper_params.interaction_protocol!r} has no {name!r},"
                f" expected some of {list(names)}.{nearest(name, names)}"
            )
        for reason in ("is_random", "use_manual_architecture"):
            if getattr(hyper_params.agents[name], reason):
                raise ParameterError(
                    f"{got}, but agents.{name}.{reason} is true: such an agent has no weights to"
                    " train. Remove one of the two."
                )
    if plays_environment(hyper_params):
        raise ParameterError(
            f"{got} with the scenario {hyper_params.scenario!r}, expected one whose agents"
            " exchange messages, e.g. graph_isomorphism. Leave imitation out."
        )
    if imitation.run is None:
        from trainers.tensordict.imitation.demonstrations import build_demonstrators

        build_demonstrators(hyper_params, handler, folder)  # raises if none exist


def _check_phases(
    hyper_params: HyperParameters,
    trainer: type[Trainer],
    handler: ProtocolHandler,
    folder: Path | None,
) -> None:
    """Refuse phases with trainers that don't support them, and incompatible phase parameters."""
    if not hyper_params.phases:
        return
    is_staged = runs_in_stages(trainer) or has_text_stages(trainer)
    if not (trainer.traits.supports_phases and is_staged):
        raise ParameterError(
            f"phases: got {len(hyper_params.phases)} with the trainer"
            f" {hyper_params.trainer_name!r}, expected one of networks, of chat models, or of"
            " language models that are trained here, e.g. vanilla_ppo, pure_text_ei or grpo. Leave"
            " them out, or choose such a trainer."
        )
    if trainer.traits.plays_text:
        _check_replaced_models(hyper_params, folder)
    for phase in read_phases(hyper_params, tuple(handler.agent_names)):
        try:
            trainer.check_parameters(phase.hyper_params, folder)
            of_phase = build_protocol_handler(phase.hyper_params, base_dir=folder)
            _check_same_agents(handler, of_phase)
            _check_partners(phase, of_phase, folder)
        except RatchetError as error:
            lines = str(error).splitlines()
            raise type(error)(
                "\n".join(f"phases.{phase.name}: {line}" for line in lines)
            ) from error


def _check_replaced_models(hyper_params: HyperParameters, folder: Path | None) -> None:
    """Refuse callbacks that replace chat models at a phase's end, after which a job follows."""
    for spec in callback_specs(hyper_params, folder):
        if spec.kind.steers and spec.writes("end_run"):
            raise ParameterError(
                f"{spec.prefix} with phases of chat models, expected none that replaces models at"
                " the end: the jobs of a phase's last iteration would train them further. Leave it"
                " out."
            )


def _check_same_agents(handler: ProtocolHandler, of_phase: ProtocolHandler) -> None:
    before, now = list(handler.agent_names), list(of_phase.agent_names)
    if before != now:
        raise ParameterError(
            f"changes: got the agents {now}, expected those of the experiment, {before}. Change"
            " parameters that determine the agents for the whole experiment."
        )


def _check_partners(phase: Phase, handler: ProtocolHandler, folder: Path | None) -> None:
    """Refuse unavailable scripted agents, and partners that share a network with other agents."""
    params = phase.hyper_params
    groups = {
        name: getattr(params.agents[name], "shared_model_group", None) or name
        for name in handler.agent_names
    }
    for name in handler.agent_names:
        others = [other for other in groups if other != name and groups[other] == groups[name]]
        if others:
            _check_shared(phase, name, others[0], groups[name])
        if params.agents[name].use_manual_architecture:
            build_scenario(params.scenario, folder).check_hand_made(params, handler, name)


def _check_shared(phase: Phase, name: str, other: str, group: str) -> None:
    """Refuse different roles of two agents of one shared model group."""
    shared = f"shares a model with {other!r} (agents.{name}.shared_model_group: {group!r})"
    if name in (phase.pools or {}):
        raise ParameterError(
            f"partners.{name}: got a pool, but {name!r} {shared}, expected separate models, since"
            " one of its earlier models replaces it. Leave the group out, or use 'frozen'."
        )
    agent = phase.hyper_params.agents[name]
    roles = {"learners": phase.learners}
    if agent.learns_tokens or agent.is_text:
        roles["fresh"] = phase.fresh
    for role, names in roles.items():
        if (name in names) != (other in names):
            raise ParameterError(
                f"{role}: got {list(names)}, but {name!r} {shared}, expected both or none."
            )


def _check_loaded_agents(hyper_params: HyperParameters, trainer: type[Trainer]) -> None:
    for name in hyper_params.agents:
        loads = hyper_params.agents[name].load_checkpoint_and_parameters
        if loads and not trainer.traits.loads_agents:
            raise ParameterError(
                f"agents.{name}.load_checkpoint_and_parameters: got true, but the trainer"
                f" {hyper_params.trainer_name!r} loads no agents. Set it to false, or choose a"
                " trainer such as vanilla_ppo or grpo."
            )
