"""Which finished stages a run keeps although the code has changed since: on resume and in forks.

The run folder says which stages a run had; only those still in the store can be kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from flows.runs.identity import Arms
from flows.runs.text_pinning import ForkPoint, keep_base_run, keep_before, keep_finished
from ratchet.errors import DataError, ParameterError, RunNotFoundError
from ratchet.experiment_files.loaded_agents import loaded_states
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.store import StageStore
from ratchet.tracking.files import write_atomically
from ratchet.tracking.manifest import StageRecord
from ratchet.tracking.run_folder import RunFolder, find_run
from tasks.stages.families import AnyKeys, make_keys
from tasks.stages.pins import Pins
from tasks.tensordict.keys import ArmKeys
from tasks.text.keys import TextArmKeys
from trainers.combinations import check_combination

FORK_FILE = "fork.json"


class Fork(BaseModel):
    """What a forked run shares with its parent: kept in the run folder as ``fork.json``."""

    model_config = ConfigDict(frozen=True)

    parent: str
    iteration: int
    stage: str = ""
    stages: list[StageRecord]

    def write(self, folder: Path) -> None:
        """Write the file into a run's folder, made if need be."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FORK_FILE, self.model_dump_json(indent=1))

    @classmethod
    def read(cls, folder: Path) -> Fork | None:
        """Read a run's file; None if the run is no fork.

        Raises
        ------
        DataError
            If the file is damaged.
        """
        path = folder / FORK_FILE
        if not path.exists():
            return None
        try:
            return cls.model_validate(json.loads(path.read_bytes()))
        except (ValueError, ValidationError) as error:
            raise DataError(f"{path}: {error}. Remove the run's folder and fork again.") from error


def arm_keys(
    arms: Arms,
    settings: ExperimentSettings,
    store: StageStore,
    fork: Fork | None,
    records: Sequence[StageRecord] | None,
) -> list[AnyKeys]:
    """Make the keys of every arm, with what is kept of earlier stages.

    Parameters
    ----------
    arms
        Parameters by name.
    settings
        Of these, ``base_dir`` is read.
    store
        Where the stages lie.
    fork
        What the run shares with its parent, if it is a fork.
    records
        The run's own stages, if they are to be kept; else None.

    Raises
    ------
    ParameterError
        If an arm's parameters don't go together.
    """
    for hyper_params in arms.values():
        check_combination(hyper_params, settings.base_dir)
    return [
        _text_keys(keys, settings, store, fork, records)
        if isinstance(keys := make_keys(arm, hyper_params, base_dir=settings.base_dir), TextArmKeys)
        else _tensor_keys(keys, settings, store, fork, records)
        for arm, hyper_params in arms.items()
    ]


def _tensor_keys(
    keys: ArmKeys,
    settings: ExperimentSettings,
    store: StageStore,
    fork: Fork | None,
    records: Sequence[StageRecord] | None,
) -> ArmKeys:
    keys.checkpoints = {
        agent: state.digest for agent, state in loaded_states(keys.hyper_params, settings).items()
    }
    if keys.only_tests:
        return keys.with_pins(base_run_pins(store, keys, Path(settings.runs)))
    pins = Pins()
    if fork is not None:
        pins = make_pins(store, keys, fork.stages, last=fork.iteration)
    if records is not None:
        own = make_pins(store, keys, records)
        pins = own if own.last >= pins.last else pins
    return keys.with_pins(pins)


def _text_keys(
    keys: TextArmKeys,
    settings: ExperimentSettings,
    store: StageStore,
    fork: Fork | None,
    records: Sequence[StageRecord] | None,
) -> TextArmKeys:
    if keys.only_tests:
        keep_base_run(store, keys, Path(settings.runs))
    if fork is not None:
        point = ForkPoint.at(fork.iteration, *([fork.stage] if fork.stage else []))
        keep_before(store, keys, fork.stages, point)
    if records is not None:
        keep_finished(store, keys, records)
    return keys


def recorded_stages(settings: ExperimentSettings) -> list[StageRecord]:
    """Read the stages that a run has recorded; none if there is no such run."""
    try:
        return RunFolder(run_path(settings)).manifest.stages
    except RunNotFoundError:
        return []


def run_path(settings: ExperimentSettings) -> Path:
    """Return the folder of the run that the settings name."""
    if settings.run_id is None:
        raise ParameterError("settings.run_id: got None, expected the id of a run.")
    return Path(settings.runs) / settings.run_id


def make_pins(
    store: StageStore, keys: ArmKeys, records: Sequence[StageRecord], *, last: int | None = None
) -> Pins:
    """Choose what an arm keeps of the stages that a run has recorded.

    A stage that is no training is kept if only its code differs from what would be made now;
    of training, the longest chain of states without a gap.

    Parameters
    ----------
    store
        Where the stages lie.
    keys
        The arm's keys, without pins.
    records
        The stages of a run; those of other arms don't matter.
    last
        Keep no state after more iterations than that.
    """
    own = [record for record in records if record.arm == keys.arm and store.peek(record.key)]
    states = _longest_chain([r for r in own if r.stage == "train"], last)
    pins = Pins(states=states)
    if not keys.is_staged:
        return _pin_if_same(store, keys, own, ["build_scenario", "whole"])
    names = ["build_scenario", "initial_state"]
    if keys.pretrained_agents:
        names += [*(f"pretrain-{agent}" for agent in keys.pretrained_agents), "pretrained_state"]
    pins = Pins(_pin_if_same(store, keys, own, names).stages, states)
    if last is not None:
        return pins
    tests = sorted({r.stage for r in own if r.stage.partition("-")[0] == "test"})
    return Pins(_pin_if_same(store, keys, own, tests, pins).stages, states)


def base_run_pins(store: StageStore, keys: ArmKeys, runs: Path) -> Pins:
    """Take the states of the run ``base_run.run_id``, to test them again.

    Parameters
    ----------
    store
        Where the stages lie.
    keys
        The arm's keys, without pins.
    runs
        The folder of all runs.

    Raises
    ------
    ParameterError
        If no run is named, or its states can't be tested.
    RunNotFoundError
        If there is no such run.
    """
    run_id = keys.hyper_params.base_run.run_id
    if run_id is None:
        raise ParameterError("base_run.run_id: got None, expected the run whose states are tested.")
    base = find_run(runs, run_id)
    if not keys.is_staged:
        raise ParameterError(
            f"base_run.base_run_type: got 'rerun_tests', but trainer"
            f" {keys.hyper_params.trainer_name!r} of run {base.run_id} only runs as a whole and"
            " has no states between."
        )
    records = [r for r in base.manifest.stages if r.arm == keys.arm and store.peek(r.key)]
    first = "pretrained_state" if keys.pretrained_agents else "initial_state"
    begun = {r.stage: r.key for r in records if r.stage == first}
    states = {record.iteration: record.key for record in records if record.stage == "train"}
    if not begun:
        raise ParameterError(
            f"base_run.run_id: run {base.run_id} has no {first.replace('_', ' ')} of arm"
            f" {keys.arm!r} in the store; `ratchet resume {base.run_id}` makes it."
        )
    return Pins({(first, 0): begun[first]}, states)


def _longest_chain(records: Sequence[StageRecord], last: int | None) -> dict[int, str]:
    """Find the chain of states from 0 that ends furthest; Iterations done → key."""
    links = {record.iteration: record for record in records}
    for end in sorted(links, reverse=True):
        if last is not None and end > last:
            continue
        chain: dict[int, str] = {}
        position = end
        while position in links:
            chain[position] = links[position].key
            position = links[position].start_iteration
        if position == 0:
            return chain
    return {}


def _pin_if_same(
    store: StageStore,
    keys: ArmKeys,
    records: Sequence[StageRecord],
    names: Sequence[str],
    pins: Pins | None = None,
) -> Pins:
    """Keep the stages of these names whose parameters and inputs are those of now."""
    pins = pins or Pins()
    kept = dict(pins.stages)
    for name in names:
        call = keys.with_pins(Pins(kept, pins.states)).by_name(name)
        for record in records:
            manifest = store.peek(record.key)
            if (
                (record.stage, record.iteration) == (name, call.iteration)
                and manifest is not None
                and manifest.parameters == call.parameters
                and manifest.inputs == call.inputs
            ):
                kept[name, call.iteration] = record.key
    return Pins(kept, pins.states)
