"""Which finished stages a run keeps: on resume, in forks, in tests of an earlier run's states.

The run folder says which stages a run had; only those still in the store can be kept. What is kept
is pinned in the arm's keys, along the sequence of its stages: each stage is looked at with what was
kept before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from flows.runs.forks import Fork
from ratchet.errors import ParameterError
from ratchet.experiment_files.imitated_rollouts import imitated_rollouts
from ratchet.experiment_files.loaded_agents import loaded_states
from ratchet.experiment_files.saved_states import saved_states
from ratchet.tracking.run_folder import find_run
from tasks.stages.families import AnyKeys, make_keys
from tasks.stages.sequence import RecordedCourse, in_order
from tasks.tensordict.keys import ArmKeys
from tasks.text.keys import TextArmKeys
from trainers.combinations import check_combination

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.manifest import Manifest
    from ratchet.store.store import StageStore
    from ratchet.tracking.manifest import StageRecord
    from tasks.stages.calls import StageCall

_Records = dict[tuple[str, int], str]
"""Name and iteration of a stage → its key."""
_KEPT_IF_SAME = (
    *("build_scenario", "initial_state", "pretrain", "pretrained_state"),
    *("imitate", "imitated_state", "phase_state", "run_trainer"),
)
"""What a fork shares with its parent where nothing but the code differs."""


def arm_keys(
    arms: Mapping[str, HyperParameters],
    settings: ExperimentSettings,
    store: StageStore,
    fork: Fork | None,
    records: Sequence[StageRecord],
) -> list[AnyKeys]:
    """Make the keys of every arm, with what is kept of earlier stages.

    ``records`` are those of the run's own stages that are to be kept; of the settings ``base_dir``
    and where earlier runs lie are read. Raises ParameterError if an arm's parameters don't go
    together.
    """
    for hyper_params in arms.values():
        check_combination(hyper_params, settings.base_dir)
    found = []
    for arm, hyper_params in arms.items():
        states = loaded_states(hyper_params, settings)
        digests = {agent: state.digest for agent, state in states.items()}
        keys = make_keys(arm, hyper_params, base_dir=settings.base_dir, checkpoints=digests)
        if isinstance(keys, ArmKeys):
            keys.imitated_rollouts = imitated_rollouts(hyper_params, settings, store)
        if keys.only_tests:
            _keep_states(store, keys, settings)
        if fork is not None or records:
            _keep(store, keys, fork, records)
        found.append(keys)
    return found


def _keep(
    store: StageStore, keys: AnyKeys, fork: Fork | None, records: Iterable[StageRecord]
) -> None:
    """Pin what an arm keeps of what its parent and itself have recorded."""
    theirs = _stored(store, keys, fork.stages, fork.iteration) if fork is not None else {}
    own = _stored(store, keys, records)
    for place, key in {**own, **theirs}.items():
        if place[0] == "train":
            keys.pins[place] = key
    for call in in_order(keys.stages(RecordedCourse({**own, **theirs}))):
        place = (call.name, call.iteration)
        if call.pinned_key is not None:
            continue
        if place in theirs and _is_shared(store.peek(theirs[place]), call, keys, fork):
            keys.pin(call, theirs[place])
        elif place in own and _continues(store.peek(own[place]), call):
            keys.pin(call, own[place])


def _is_shared(
    manifest: Manifest | None, call: StageCall, keys: AnyKeys, fork: Fork | None
) -> bool:
    """Return whether a fork takes a parent's stage: before its point, or but for the code."""
    if isinstance(keys, TextArmKeys) and fork is not None and fork.point.is_after(call):
        return True
    return (
        manifest is not None
        and call.stage in _KEPT_IF_SAME
        and manifest.inputs == call.inputs
        and manifest.parameters == call.parameters
    )


def _continues(manifest: Manifest | None, call: StageCall) -> bool:
    """Return whether a stored stage was made of what the call takes in, by a task of its kind."""
    return (
        manifest is not None
        and manifest.inputs == call.inputs
        and manifest.parameters.get("stage_version") == call.parameters["stage_version"]
    )


def _keep_states(store: StageStore, keys: AnyKeys, settings: ExperimentSettings) -> None:
    """Pin the states of the run ``base_run.run_id``, to test them again.

    Raises ParameterError if no run is named, or its states can't be tested; RunNotFoundError if
    there is no such run.
    """
    run_id = keys.hyper_params.base_run.run_id
    if run_id is None:
        raise ParameterError("base_run.run_id: got None, expected the run whose states are tested.")
    base = find_run(settings.runs, run_id)
    if isinstance(keys, ArmKeys) and not keys.is_staged:
        states = saved_states(run_id, settings, arm=keys.arm)
        keys.tested_states = {state.iteration: state for state in states}
        if not states or not keys.trainer_class.has_own_test():
            raise ParameterError(
                f"base_run.base_run_type: got 'rerun_tests', but trainer"
                f" {keys.hyper_params.trainer_name!r} of run {base.run_id} only runs as a whole:"
                f" it has {len(states)} saved states in the store, expected some, and a method"
                " _run_test_loop to test them by."
            )
        return
    known = {
        (record.stage, record.iteration): record.key
        for record in base.manifest.stages
        if record.arm == keys.arm and store.peek(record.key) is not None
    }
    for name, iteration in keys.needed_states:
        if (name, iteration) not in known:
            raise ParameterError(
                f"base_run.run_id: run {base.run_id} has no state from {name} {iteration} of arm"
                f" {keys.arm!r} in the store; finish it with `ratchet resume {base.run_id}`, or ask"
                " for fewer rl.num_iterations."
            )
    needed = keys.needed_states
    keys.pins |= {p: key for p, key in known.items() if p in needed or p[0] == "train"}


def _stored(
    store: StageStore, keys: AnyKeys, records: Iterable[StageRecord], last: int | None = None
) -> _Records:
    """Return those of an arm's stages that are still stored; of training, a chain without a gap."""
    own = [r for r in records if r.arm == keys.arm and store.peek(r.key) is not None]
    chain = _longest_chain([record for record in own if record.stage == "train"], last)
    others = [record for record in own if record.stage != "train"]
    return {(record.stage, record.iteration): record.key for record in (*others, *chain)}


def _longest_chain(records: Sequence[StageRecord], last: int | None) -> list[StageRecord]:
    """Return the chain of training stages from 0 that ends furthest, at ``last`` at most."""
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
