"""Pinned stages: finished stages that a run reuses although their code or parameters changed.

Resumed runs, forks and retests pin stages recorded in a run folder that are still in the store; a
run with ``settings.paid_code_changes=keep`` pins stages that cost money. Stages are pinned in the
arm's keys in order, so that each stage's inputs include the stages pinned before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flows.planning.estimates import estimate_stages
from flows.runs.references import Fork
from ratchet.errors import ParameterError
from ratchet.experiment_files.base_run import imitated_rollouts, loaded_states, saved_states
from ratchet.parameters.chat_agents import TextAgentParameters
from ratchet.protocols.registry import playing_agents
from ratchet.tracking.run_folder import find_run
from ratchet.tracking.stage_kinds import kind_of
from tasks.stages.families import AnyKeys, make_keys
from tasks.stages.sequence import RecordedStageLayout, StoredStageLayout, flatten_steps
from tasks.tensordict.keys import ArmKeys
from tasks.text.keys import TextArmKeys
from trainers.compatibility import check_combination

if TYPE_CHECKING:
    from ratchet.language_models.estimates import StageEstimate
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.closure import KnownCode
    from ratchet.store.manifest import Manifest
    from ratchet.store.stage_index import StageIndex
    from ratchet.store.store import StageStore
    from ratchet.tracking.manifest import StageRecord
    from tasks.stages.calls import StageCall


_Records = dict[tuple[str, int], str]
"""Name and iteration of a stage → its key."""


def arm_keys(
    arms: Mapping[str, HyperParameters],
    settings: ExperimentSettings,
    store: StageStore,
    fork: Fork | None,
    records: Sequence[StageRecord],
    code: KnownCode,
) -> list[AnyKeys]:
    """Create the keys of every arm, with earlier stages pinned.

    ``records`` are the run's finished stages to keep; ``code`` is the code that other keys have
    read. Reads ``base_dir`` and the folders of runs from the settings. Raises ParameterError if an
    arm's parameters are incompatible.
    """
    for hyper_params in arms.values():
        check_combination(hyper_params, settings.base_dir)
    arm_keys = []
    for arm, hyper_params in arms.items():
        states = loaded_states(hyper_params, settings)
        digests = {agent: state.digest for agent, state in states.items()}
        keys = make_keys(
            arm,
            hyper_params,
            base_dir=settings.base_dir,
            checkpoints=digests,
            code=code,
        )
        if isinstance(keys, ArmKeys):
            keys.imitated_rollouts = imitated_rollouts(hyper_params, settings, store)
        if keys.only_tests:
            _pin_states(store, keys, settings)
        if fork is not None or records:
            _pin_recorded(store, keys, fork, records)
        arm_keys.append(keys)
    return arm_keys


def _pin_recorded(
    store: StageStore, keys: AnyKeys, fork: Fork | None, records: Iterable[StageRecord]
) -> None:
    """Pin recorded stages of an arm, and of the same arm of a fork's parent."""
    parents = _stored(store, keys, fork.stages, fork.iteration) if fork is not None else {}
    recorded_keys = _stored(store, keys, records)
    for position, key in {**recorded_keys, **parents}.items():
        if _trains(position[0]):
            keys.pins[position] = key
    for call in flatten_steps(keys.stages(RecordedStageLayout({**recorded_keys, **parents}))):
        position = (call.name, call.iteration)
        if call.pinned_key is not None:
            continue
        if position in parents and _is_shared(store.peek(parents[position]), call, keys, fork):
            keys.pin(call, parents[position])
        elif position in recorded_keys and _matches(store.peek(recorded_keys[position]), call):
            keys.pin(call, recorded_keys[position])


def _is_shared(
    manifest: Manifest | None, call: StageCall, keys: AnyKeys, fork: Fork | None
) -> bool:
    """Return whether a fork shares a parent's stage: before its point, or equal except code.

    Equal ones are stages before training, not tests or a plug-in's stages after it.
    """
    if isinstance(keys, TextArmKeys) and fork is not None and fork.point.is_after(call):
        return True
    return (
        manifest is not None
        and call.kind in keys.family_kinds
        and call.kind.span == "run"
        and not call.kind.is_test
        and manifest.inputs == call.inputs
        and manifest.parameters == call.parameters
    )


def _matches(manifest: Manifest | None, call: StageCall) -> bool:
    """Return whether a stored stage has the call's inputs and stage version."""
    return (
        manifest is not None
        and manifest.inputs == call.inputs
        and manifest.parameters.get("stage_version") == call.parameters["stage_version"]
    )


def _pin_states(store: StageStore, keys: AnyKeys, settings: ExperimentSettings) -> None:
    """Pin the states of the run ``base_run.run_id`` for a retest.

    Raises ParameterError if no run is named, or its states can't be tested; RunNotFoundError if
    the run does not exist.
    """
    run_id = keys.hyper_params.base_run.run_id
    if run_id is None:
        raise ParameterError("base_run.run_id: got None, expected the run whose states are tested.")
    base = find_run(settings.runs, run_id)
    if isinstance(keys, ArmKeys) and not keys.is_staged:
        states = saved_states(run_id, settings, arm=keys.arm)
        keys.tested_states = {state.iteration: state for state in states}
        if not states or not hasattr(keys.trainer_class, "_run_test_loop"):
            raise ParameterError(
                f"base_run.base_run_type: got 'rerun_tests', but trainer"
                f" {keys.hyper_params.trainer_name!r} of run {base.run_id} runs in one stage and"
                f" has {len(states)} saved states in the store, expected at least one, and a method"
                " _run_test_loop that tests them."
            )
        return
    available = {
        (record.stage, record.iteration): record.key
        for record in base.manifest.stages
        if record.arm == keys.arm
        and (stored := store.peek(record.key)) is not None
        and not stored.removed
    }
    required = keys.copy().needed_states  # these keys must create no call before its pin
    for name, iteration in required:
        if (name, iteration) not in available:
            raise ParameterError(
                f"base_run.run_id: run {base.run_id} has no state from {name} {iteration} of arm"
                f" {keys.arm!r} in the store; finish it with `ratchet resume {base.run_id}`, or"
                " lower rl.num_iterations."
            )
    keys.pins |= {p: key for p, key in available.items() if p in required or _trains(p[0])}


def _stored(
    store: StageStore, keys: AnyKeys, records: Iterable[StageRecord], last: int | None = None
) -> _Records:
    """Return an arm's stages that are still stored; training stages only as a gapless chain."""
    arm_records = [r for r in records if r.arm == keys.arm and store.peek(r.key) is not None]
    chain = _longest_chain([record for record in arm_records if _trains(record.stage)], last)
    others = [record for record in arm_records if not _trains(record.stage)]
    return {(record.stage, record.iteration): record.key for record in (*others, *chain)}


def _trains(stage: str) -> bool:
    """Return whether stages of a name train iterations from the state of the one before."""
    return kind_of(stage).span == "iterations"


def _longest_chain(records: Sequence[StageRecord], last: int | None) -> list[StageRecord]:
    """Return the longest chain of training stages from 0 that ends at ``last`` or earlier."""
    links = {record.iteration: record for record in records}
    for end in sorted(links, reverse=True):
        if last is not None and end > last:
            continue
        chain: list[StageRecord] = []
        position = end
        while position in links:
            chain.append(links[position])
            position = links[position].start_iteration
        if position == 0:
            return chain
    return []


_SHOWN = 5


@dataclass(frozen=True)
class ChangedStage:
    """A stage that is stored, but was computed with other code.

    ``cost`` is the estimate of computing it again: 0.0 if it is free, None if a model has no price
    or the trainer doesn't report its number of calls.
    """

    call: StageCall
    stored: Manifest
    cost: float | None


def pin_changed_stages(
    store: StageStore, keys: AnyKeys, settings: ExperimentSettings, index: StageIndex
) -> list[ChangedStage]:
    """Pin each stage of an arm that is stored with the same parameters and inputs, but other code.

    Only for arms of chat models, whose stages may cost money.
    """
    if not isinstance(keys, TextArmKeys):
        return []
    changed: list[tuple[StageCall, Manifest]] = []
    for call in flatten_steps(keys.stages(StoredStageLayout(store, settings))):
        if store.peek(call.key) is not None:
            continue
        stored = index.with_other_code(call.stage, call.iteration, call.parameters, call.inputs)
        if stored is not None:
            changed.append((call, stored))
            keys.pin(call, stored.key)
    if not changed:
        return []
    costs = _costs(store, keys, settings, [call for call, _ in changed])  # data are pinned now
    return [ChangedStage(*pair, cost) for pair, cost in zip(changed, costs, strict=True)]


def paid_again(stages: Iterable[ChangedStage]) -> str:
    """Return a message about stages that cost money, with their cost; empty without such stages."""
    paid = {s.stored.key: s for s in stages if s.cost is None or s.cost > 0}
    return _message(list(paid.values())) if paid else ""


def _costs(
    store: StageStore, keys: TextArmKeys, settings: ExperimentSettings, calls: Sequence[StageCall]
) -> list[float | None]:
    """Return the cost of each stage, None for an unknown one.

    Costs are unknown if the agents of a custom trainer are not chat models.
    """
    agents = playing_agents(keys.hyper_params, keys.base_path).values()
    if not all(isinstance(agent, TextAgentParameters) for agent in agents):
        return [None if call.kind.is_billed else 0.0 for call in calls]
    estimates = estimate_stages(store, keys, settings)
    return [_cost(estimates.get((call.stage, call.iteration))) for call in calls]


def _cost(estimate: StageEstimate | None) -> float | None:
    if estimate is None:
        return 0.0
    is_known = estimate.is_known and not estimate.unpriced_models
    return estimate.cost if is_known else None


def _message(stages: Sequence[ChangedStage]) -> str:
    changes = [stage.call.fingerprint.difference(stage.stored.fingerprint) for stage in stages]
    lines = dict.fromkeys(line for change in changes for line in change)
    first_lines = ", ".join(list(lines)[:_SHOWN])
    more = len(lines) - _SHOWN
    cost = sum(stage.cost or 0.0 for stage in stages)
    unknown = (
        " plus the cost of models without a price" if any(s.cost is None for s in stages) else ""
    )
    names = ", ".join(dict.fromkeys(stage.call.stage for stage in stages))
    return (
        f"{len(stages)} stages that cost money ({names}) are stored, but were computed with other"
        f" code: {first_lines}{f' and {more} more' if more > 0 else ''}. Computing them again may"
        f" cost up to {cost:.2f}{unknown}. Keep them with --keep (settings.paid_code_changes=keep),"
        " or pay again with --recompute-paid (settings.paid_code_changes=recompute)."
    )
