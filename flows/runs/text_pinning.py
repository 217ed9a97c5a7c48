"""Which finished stages of chat models a run keeps: on resume, in forks, in retests.

They cost money, so on resume every stage is kept that continues what is kept before it, whatever
has become of the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratchet.errors import ParameterError
from ratchet.tracking.run_folder import find_run
from tasks.stages.calls import ITERATION_STAGES

if TYPE_CHECKING:
    from pathlib import Path

    from ratchet.store.manifest import Manifest
    from ratchet.store.store import StageStore
    from ratchet.tracking.manifest import StageRecord
    from tasks.stages.calls import StageCall
    from tasks.text.keys import TextArmKeys

_Records = dict[tuple[str, int], str]


@dataclass(frozen=True, order=True)
class ForkPoint:
    """The first stage that a fork does itself: of iteration ``iteration``, the stage's place."""

    iteration: int
    place: int = 0

    @classmethod
    def at(cls, iteration: int, stage: str = ITERATION_STAGES[0]) -> ForkPoint:
        """Make the point before a stage of an iteration.

        Raises
        ------
        ParameterError
            If an iteration has no such stage.
        """
        if stage not in ITERATION_STAGES:
            raise ParameterError(
                f"fork: got the stage {iteration}:{stage}, expected K or K:STAGE with one of"
                f" {', '.join(ITERATION_STAGES)}."
            )
        return cls(iteration, ITERATION_STAGES.index(stage))

    @property
    def needed(self) -> list[tuple[str, int]]:
        """The stages (name, iteration) that a fork continues directly, from its parent."""
        before = self.iteration - 1
        state = ("await_fine_tune_jobs", before) if self.iteration else ("initial_state", 0)
        stages = ("sample_rollouts", "create_fine_tune_jobs")
        return [state] + [
            (name, self.iteration) for name in stages if ITERATION_STAGES.index(name) < self.place
        ]

    def is_after(self, call: StageCall) -> bool:
        """Say whether a stage comes before the point."""
        if call.stage == "initial_state":
            return self > ForkPoint(0)
        if call.stage not in ITERATION_STAGES:
            return False
        return ForkPoint(call.iteration, ITERATION_STAGES.index(call.stage)) < self


def keep_before(
    store: StageStore, keys: TextArmKeys, records: Sequence[StageRecord], point: ForkPoint
) -> None:
    """Keep all that a run has done before a point, whatever its parameters were.

    Parameters
    ----------
    store
        Where the stages lie.
    keys
        The arm's keys; what is kept is pinned there.
    records
        The stages of the parent.
    point
        Where the fork begins.
    """
    known = _stored(store, keys, records)
    for call in keys.stages():
        key = known.get((call.name, call.iteration))
        if key is not None and (point.is_after(call) or _same_but_code(store.peek(key), call)):
            keys.pin(call, key)


def keep_finished(store: StageStore, keys: TextArmKeys, records: Sequence[StageRecord]) -> None:
    """Keep what a run has finished, as far as each stage continues what is kept before it.

    Parameters
    ----------
    store, keys, records
        As :func:`keep_before`.
    """
    known = _stored(store, keys, records)
    tested = sorted({name for name, _ in known if name.partition("-")[0] == "test"})
    datasets = [name.partition("-")[2] or "test" for name in tested]
    for call in keys.stages(datasets):
        key = known.get((call.name, call.iteration))
        if call.pinned_key is None and key is not None and _continues(store.peek(key), call):
            keys.pin(call, key)


def keep_base_run(store: StageStore, keys: TextArmKeys, runs: Path) -> None:
    """Take the states of the run ``base_run.run_id``, to test them again.

    Parameters
    ----------
    store, keys
        As :func:`keep_before`.
    runs
        The folder of all runs.

    Raises
    ------
    ParameterError
        If no run is named, or it does not have all states.
    RunNotFoundError
        If there is no such run.
    """
    run_id = keys.hyper_params.base_run.run_id
    if run_id is None:
        raise ParameterError("base_run.run_id: got None, expected the run whose states are tested.")
    base = find_run(runs, run_id)
    known = _stored(store, keys, base.manifest.stages)
    places = [("initial_state", 0)]
    places += [("await_fine_tune_jobs", done) for done in range(keys.num_iterations - 1)]
    for place in places:
        if place not in known:
            raise ParameterError(
                f"base_run.run_id: run {base.run_id} has no state from {place[0]} {place[1]} of arm"
                f" {keys.arm!r} in the store; finish it with `ratchet resume {base.run_id}`, or ask"
                " for fewer rl.num_iterations."
            )
        keys.pin(keys.by_name(*place), known[place])


def _stored(store: StageStore, keys: TextArmKeys, records: Sequence[StageRecord]) -> _Records:
    """Return the key of each of the arm's stages that are still in the store."""
    return {
        (record.stage, record.iteration): record.key
        for record in records
        if record.arm == keys.arm and store.peek(record.key) is not None
    }


def _continues(manifest: Manifest | None, call: StageCall) -> bool:
    """Say whether a stored stage was made of what the call takes in, by a task of its kind."""
    return (
        manifest is not None
        and manifest.inputs == call.inputs
        and manifest.parameters.get("stage_version") == call.parameters["stage_version"]
    )


def _same_but_code(manifest: Manifest | None, call: StageCall) -> bool:
    return (
        manifest is not None
        and call.stage in ("build_scenario", "initial_state")
        and manifest.inputs == call.inputs
        and manifest.parameters == call.parameters
    )
