"""Sequence of an arm's stages: its steps, and how training is split into stages.

The keys of a family define the sequence once (:meth:`tasks.stages.keys.BaseKeys.stages`): runs
execute it, plans look up each stage, and recorded stages are matched against it. It is generated
lazily, so that a step may depend on results or pins of the steps before it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratchet.scenarios.validation_split import expected_test_sets
from ratchet.store.manifest import Manifest
from tasks.stages.calls import TEST_DATASET, StageCall, Step
from tasks.stages.files import dataset_names

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.store import StageStore
    from tasks.stages.keys import BaseKeys, TrainedArm


def flatten_steps(steps: Iterable[Step]) -> Iterator[StageCall]:
    """Iterate over the stages of a sequence, chains in order."""
    for step in steps:
        if isinstance(step, StageCall):
            yield step
        else:
            for chain in step:
                yield from chain


@dataclass(frozen=True)
class StageBoundaries:
    """Iterations at which training is split into stages, and whose rollouts are stored.

    Every period (``settings.iterations_per_task``, ``checkpoint_period``,
    ``rollout_sample_period``) splits at its multiples, so that runs of different lengths share
    their stages; no state depends on it. So do ``boundaries``, once each. Rollouts of every
    ``sample_period``-th iteration are stored, none if it is None.
    """

    periods: tuple[int, ...]
    sample_period: int | None = None
    boundaries: tuple[int, ...] = ()

    @classmethod
    def from_settings(
        cls,
        settings: ExperimentSettings,
        periods: tuple[int, ...] = (),
        boundaries: tuple[int, ...] = (),
    ) -> StageBoundaries:
        """Combine the periods of the settings with an arm's ``periods`` and ``boundaries``."""
        all_periods = (
            settings.iterations_per_task,
            settings.checkpoint_period,
            settings.rollout_sample_period,
            *periods,
        )
        configured_periods = tuple(period for period in all_periods if period is not None)
        return cls(configured_periods, settings.rollout_sample_period, boundaries)

    def next_stop(self, position: int, target: int) -> int:
        """Return the end of the next train stage: the next multiple of a period, or the end."""
        multiples = ((position // period + 1) * period for period in self.periods)
        return min([target, *multiples, *(each for each in self.boundaries if each > position)])

    def samples_at(self, position: int, target: int) -> bool:
        """Return whether the rollouts of the iteration that starts at a state are stored."""
        period = self.sample_period
        return period is not None and position < target and position % period == 0


@dataclass(frozen=True)
class StoredStageLayout:
    """The layout of a run: split as the settings specify, except where stages are stored.

    With ``recomputed``, in a run that recomputes every stage, only stages with these keys count.
    """

    store: StageStore
    settings: ExperimentSettings
    recomputed: Container[str] | None = None

    def tested(self, keys: BaseKeys) -> list[str]:
        """Return the datasets that were built; the expected ones if none were built yet."""
        data = self.store.peek(keys.build_scenario().key, allow_stale=True)
        if data is not None:
            untested = keys.scenario.untested
            return [name for name in dataset_names(data) if name not in untested]
        return sorted(expected_test_sets(keys.scenario, keys.hyper_params))

    def stops(self, keys: TrainedArm) -> Iterator[int]:
        """Follow the longest stored chain, then the multiples of the periods.

        The chain is used only until a link does not end where the arm requires it.
        """
        position, last = 0, keys.num_iterations
        required = StageBoundaries(keys.periods, boundaries=keys.boundaries)
        for link in find_chain(self.store, keys, last, self.recomputed):
            if link.iteration > required.next_stop(position, last):
                break
            position = link.iteration
            yield position
        every = StageBoundaries.from_settings(self.settings, keys.periods, keys.boundaries)
        while position < last:
            position = every.next_stop(position, last)
            yield position

    def samples_at(self, iteration: int, last: int) -> bool:
        """Return whether the settings request the rollouts."""
        return StageBoundaries.from_settings(self.settings).samples_at(iteration, last)


class RecordedStageLayout:
    """The layout of a run so far, by name and iteration of an arm's recorded stages."""

    def __init__(self, recorded: Iterable[tuple[str, int]]) -> None:
        self._recorded = set(recorded)

    def tested(self, keys: BaseKeys) -> list[str]:
        """Return the datasets of recorded tests."""
        names = {name for name, _ in self._recorded if name.partition("-")[0] == "test"}
        return [name.partition("-")[2] or TEST_DATASET for name in sorted(names)]

    def stops(self, keys: TrainedArm) -> Iterator[int]:
        """Iterate over the recorded iterations, and to the end."""
        recorded = {iteration for name, iteration in self._recorded if name == "train"}
        stops = {*recorded, *keys.boundaries}
        yield from sorted(stops)
        if max(stops, default=0) < keys.num_iterations:
            yield keys.num_iterations

    def samples_at(self, iteration: int, last: int) -> bool:
        """Return whether rollouts were recorded."""
        return ("rollouts", iteration) in self._recorded


def recorded_calls(
    keys: BaseKeys, recorded: Iterable[tuple[str, int]]
) -> Mapping[tuple[str, int], StageCall]:
    """Return an arm's stages by name and iteration, in the layout of its recorded stages."""
    stages = keys.stages(RecordedStageLayout(recorded))
    return {(call.name, call.iteration): call for call in flatten_steps(stages)}


def find_chain(
    store: StageStore, keys: TrainedArm, target: int, among: Container[str] | None = None
) -> list[Manifest]:
    """Return the stored links from the initial state to the furthest state up to ``target``.

    The key of a state depends on its number of iterations, not on how training was split. Links
    contain the metrics, so that a chain counts only without a gap. Returned in the order of
    training, empty if no link starts at the initial state. With ``among``, only stages with these
    keys count.
    """
    for iteration in range(target, 0, -1):
        if among is not None and keys.state_key(iteration) not in among:
            continue
        links = _trace_chain(store, keys, iteration)
        if links is not None:
            return links
    return []


def _trace_chain(store: StageStore, keys: TrainedArm, iteration: int) -> list[Manifest] | None:
    """Follow the links from a state back to the initial one; None if one is missing."""
    links: list[Manifest] = []
    while iteration > 0:
        manifest = store.find(keys.state_key(iteration))
        if manifest is None or not manifest.start_iteration < iteration:
            return None
        links.append(manifest)
        iteration = manifest.start_iteration
    return links[::-1]
