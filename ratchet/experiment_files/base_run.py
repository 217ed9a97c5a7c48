"""Reuse of earlier runs: ``base_run`` parameters, loaded agents, imitated rollouts, saved states.

States are found by run and version, and identified by their content. A run of stages has a state in
the store for each of its train stages; a trainer with its own loop those that it saved during
training, and the last; plain Python training a checkpoint folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import ParameterError, RunNotFoundError, nearest, shown
from ratchet.parameters.compatibility.converters import upgraded
from ratchet.parameters.purposes import Purpose, declared_purposes
from ratchet.parameters.reading.deep_merge import change_every_agent, merge_changes
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.stage_kinds import ROLLOUTS, RUN_TRAINER
from ratchet.tracking.trainer_files import (
    METADATA_FILE,
    STATE_FOLDER,
    VERSIONS_FOLDER,
    SavedState,
    checkpoint_states,
    choose_version,
    state_digest,
)

if TYPE_CHECKING:
    from ratchet.parameters.agents import AgentParameters
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.manifest import Manifest
    from ratchet.store.store import StageStore
    from ratchet.tracking.run_folder import RunFolder


def with_base_run(data: Mapping[str, Any], runs: str | Path) -> dict[str, Any]:
    """Merge parameters over those of the run that ``base_run`` names, if any.

    ``data`` are nested as in a file. Their changes of ``agents._default`` apply to all agents that
    they do not name.
    """
    from ratchet.tracking.run_folder import find_run

    base_run = data.get("base_run")
    if not isinstance(base_run, Mapping) or base_run.get("base_run_type", "none") == "none":
        return dict(data)
    run_id = base_run.get("run_id")
    if not isinstance(run_id, str):
        raise ParameterError(
            f"base_run.run_id: got {shown(run_id)}, expected the id of the run to build on, since"
            f" base_run.base_run_type is {shown(base_run['base_run_type'])}."
        )
    arms = find_run(runs, run_id).manifest.arms
    base = {**upgraded(arms[MAIN_ARM], f"run {run_id}"), "base_run": {}}
    return merge_changes(change_every_agent(base, data), data)


_SHARED = (
    "scenario",
    "d_representation",
    "message_size",
    "include_linear_message_space",
    "d_linear_message_space",
)
"""Parameters outside ``agents`` that determine the agents' shapes."""


def with_loaded_agents(
    hyper_params: HyperParameters, settings: ExperimentSettings
) -> HyperParameters:
    """Give loaded agents their parameters of the run that they come from.

    Weights and network parameters come from that run, parameters of learning from the experiment.
    Idempotent: the version ``latest`` is replaced by its number of iterations.
    """
    agents = hyper_params.agents
    if not any(agents[name].load_checkpoint_and_parameters for name in agents):
        return hyper_params
    sections = {name: agents[name].to_dict() for name in _agent_names(hyper_params, settings)}
    loaded = {
        name: _loaded(hyper_params, name, agents[name], settings)
        for name in sections
        if agents[name].load_checkpoint_and_parameters
    }
    mixed = _mixed_groups({**sections, **loaded})
    data = hyper_params.to_dict()
    for name, section in loaded.items():
        alone = {"shared_model_group": None} if section.get("shared_model_group") in mixed else {}
        data["agents"][name] = {**section, **alone}
    return type(hyper_params).from_dict(data)


def _mixed_groups(sections: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the model groups whose agents are not all loaded from the same state."""
    sources: dict[str | None, set[tuple[object, ...]]] = {}
    for section in sections.values():
        source = section["checkpoint_run_id"], section["checkpoint_version"]
        sources.setdefault(section.get("shared_model_group"), set()).add(source)
    return {group for group, loaded in sources.items() if group is not None and len(loaded) > 1}


def loaded_states(
    hyper_params: HyperParameters, settings: ExperimentSettings
) -> dict[str, SavedState]:
    """Return the source state of each loaded agent, by agent."""
    agents = hyper_params.agents
    if not any(agents[name].load_checkpoint_and_parameters for name in agents):
        return {}
    return {
        name: _find(name, agents[name], settings)
        for name in _agent_names(hyper_params, settings)
        if agents[name].load_checkpoint_and_parameters
    }


def _agent_names(hyper_params: HyperParameters, settings: ExperimentSettings) -> list[str]:
    from ratchet.protocols.registry import build_protocol_handler

    base_dir = None if settings.base_dir is None else Path(settings.base_dir)
    handler = build_protocol_handler(hyper_params, base_dir=base_dir)
    return list(
        handler.agent_names or hyper_params.agents.named
    )  # an environment defines its agents


def _find(name: str, section: AgentParameters, settings: ExperimentSettings) -> SavedState:

    path = f"agents.{name}"
    if section.checkpoint_run_id is None:
        raise ParameterError(
            f"{path}.checkpoint_run_id: got None, expected the id of the run to load the agent"
            f" from, since {path}.load_checkpoint_and_parameters is true."
        )
    if section.is_text:
        raise ParameterError(
            f"{path}.load_checkpoint_and_parameters: got true, but a chat model's weights are"
            " with its service. Name the trained model in model_name instead."
        )
    return find_saved_state(section.checkpoint_run_id, section.checkpoint_version, settings)


def name_arm(run: str, arm: str) -> str:
    """Name an arm of a run, as :func:`saved_states` reads it."""
    return run if arm == MAIN_ARM else f"{run}{_ARM_MARK}{arm}"


def _loaded(
    hyper_params: HyperParameters,
    name: str,
    section: AgentParameters,
    settings: ExperimentSettings,
) -> dict[str, Any]:
    state = _find(name, section, settings)
    earlier = upgraded(state.hyper_params, f"run {state.run_id}")
    source = type(hyper_params).from_dict(earlier)
    known = _agent_names(source, settings)
    whose = f"run {state.run_id}"
    if name not in known:
        raise ParameterError(
            f"agents.{name}.checkpoint_run_id: {whose} has no agent {name!r}.{nearest(name, known)}"
        )
    for path in _SHARED:
        here, there = getattr(hyper_params, path), getattr(source, path)
        if here != there:
            raise ParameterError(
                f"{path}: got {here!r}, but agent {name!r} of {whose} was built for {there!r},"
                f" and is loaded. Expected {there!r}."
            )
    theirs = source.agents[name]
    for agent, where in ((theirs, f"in {whose}"), (section, "here")):
        reason = agent.never_learns_by()
        if reason is not None:
            raise ParameterError(
                f"agents.{name}.load_checkpoint_and_parameters: got true, but {reason} is"
                f" {shown(getattr(agent, reason))} {where}: such an agent has no weights."
                " Leave one of the two out."
            )
    purposes = declared_purposes(type(section))
    agent_options = {
        key: value
        for key, value in section.to_dict().items()
        if purposes[key] and Purpose.NETWORKS not in purposes[key]
    }
    return {**theirs.to_dict(), **agent_options, "checkpoint_version": str(state.iteration)}


_ARM_MARK = ":"


def imitated_rollouts(
    hyper_params: HyperParameters, settings: ExperimentSettings, store: StageStore
) -> tuple[str, ...]:
    """Return the keys of the stages with the rollouts to imitate, by iteration."""
    imitation = hyper_params.imitation
    if not imitation.agents or imitation.run is None:
        return ()
    from ratchet.tracking.run_folder import find_run

    folder = find_run(settings.runs, imitation.run)
    records = [r for r in folder.manifest.stages if (r.arm, r.stage) == (MAIN_ARM, ROLLOUTS.name)]
    stored_stages = sorted((r.iteration, r.key) for r in records if store.peek(r.key) is not None)
    if not stored_stages:
        raise ParameterError(
            f"imitation.source: got {imitation.source!r}, but run {folder.run_id} has no"
            " rollouts in the store, expected some. Run its experiment again with"
            " settings.rollout_sample_period=K: trained stages stay, and the rollouts of every"
            " K-th stored iteration are collected again."
        )
    return tuple(key for _, key in stored_stages)


def saved_states(
    run: str, settings: ExperimentSettings, *, arm: str = MAIN_ARM
) -> list[SavedState]:
    """Return the states of a run's arm, sorted by number of iterations.

    ``run`` is the run's id, a prefix of it, or its folder; ``RUN:ARM`` also names the arm.
    """
    from ratchet.tracking.run_folder import find_run

    run, _, named_arm = run.partition(_ARM_MARK)
    arm = named_arm or arm
    try:
        folder = find_run(settings.runs, run)
    except RunNotFoundError:
        states = checkpoint_states(settings.home, run)
        if not states:
            raise
    else:
        states = checkpoint_states(settings.home, folder.run_id) if arm == MAIN_ARM else {}
        states |= _stored(folder, settings, arm)
    return [states[iteration] for iteration in sorted(states)]


def find_saved_state(
    run: str, version: str, settings: ExperimentSettings, *, arm: str = MAIN_ARM
) -> SavedState:
    """Return a state of a run, which is given as in :func:`saved_states`.

    ``version`` is ``"latest"``, or the number of training iterations that led to it. Raises
    CheckPointNotFoundError, with the available states, if the run has no such state.
    """
    states = saved_states(run, settings, arm=arm)
    return choose_version(states, version, f"run {run} (arm {arm!r})")


def _stored(folder: RunFolder, settings: ExperimentSettings, arm: str) -> dict[int, SavedState]:
    """Return the states in the store: iterations → state."""
    from ratchet.store.store import StageStore

    manifest = folder.manifest
    store = StageStore(settings.store_url)
    records = [(manifest.kind_of(r.stage), r) for r in manifest.stages if r.arm == arm]
    first = [(kind, record) for kind, record in records if kind.state == "first"]
    trained = [(kind, record) for kind, record in records if kind.state == "trained"]
    states = {}
    for kind, record in [*first, *trained]:
        stage = store.peek(record.key)
        if stage is None:
            continue
        for iteration, folder_name in _state_folders(store, stage, record.iterations(kind).stop):
            files = _files(stage, folder_name)
            if files:
                states[iteration] = SavedState(
                    folder.run_id,
                    iteration,
                    state_digest(files),
                    manifest.arms[arm],
                    partial(_open, store, record.key, folder_name),
                    partial(_open, store, folder=STATE_FOLDER),
                )
    return states


def _state_folders(
    store: StageStore, stage: Manifest, iterations: int
) -> Iterator[tuple[int, str]]:
    """Yield the states in a stage, that after all its iterations last: iterations and folder."""
    if stage.stage != RUN_TRAINER.name:
        yield iterations, STATE_FOLDER
        return
    prefix = f"{VERSIONS_FOLDER}/"
    versions = {name.split("/")[1] for name in stage.files if name.startswith(prefix)}
    for version in sorted(versions):
        yield int(version), f"{prefix}{version}/{STATE_FOLDER}"
    if METADATA_FILE in stage.files:
        metadata = json.loads((store.open(stage.key) / METADATA_FILE).read_bytes())
        yield int(metadata["iteration"]), STATE_FOLDER


def _files(stage: Manifest, folder: str) -> dict[str, str]:
    prefix = f"{folder}/"
    return {
        name.removeprefix(prefix): entry.sha256
        for name, entry in stage.files.items()
        if name.startswith(prefix)
    }


def _open(store: StageStore, key: str, folder: str) -> Path:
    return store.open(key) / folder
