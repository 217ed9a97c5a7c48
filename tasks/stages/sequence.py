"""What the sequence of an arm's stages is made of, beside the arm's keys.

A sequence is said once, by ``stages`` of the keys of a family. Runs work it off, plans look each
stage up, and what a run has recorded is matched against it. It is made step by step, so that a
step may depend on what those before it have stored, or on what of them is kept.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tasks.stages.calls import TEST_DATASET, StageCall
from tasks.stages.chain import Cut, TrainedArm, find_chain
from tasks.stages.datasets import dataset_names

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.store import StageStore
    from tasks.stages.keys import BaseKeys

Chain: TypeAlias = Iterator[StageCall]
"""Stages of which each takes in what the one before it has made."""
SideBySide: TypeAlias = tuple[Chain, ...]


@dataclass(frozen=True)
class Beside:
    """A stage, and one that is made meanwhile, whose result it may wait for at its end."""

    ahead: StageCall
    call: StageCall


Step: TypeAlias = StageCall | SideBySide | Beside
"""One stage, two of which one is made meanwhile, or chains that may be worked at the same time."""


def in_order(steps: Iterable[Step]) -> Iterator[StageCall]:
    """Go through the stages of a sequence one by one, chains one after the other."""
    for step in steps:
        if isinstance(step, StageCall):
            yield step
        elif isinstance(step, Beside):
            yield step.ahead
            yield step.call
        else:
            for chain in step:
                yield from chain


class Course(Protocol):
    """What decides, beside an arm's parameters, which stages it has."""

    def tested(self, keys: BaseKeys) -> list[str]:
        """Return the datasets that states are tested on."""

    def stops(self, keys: TrainedArm) -> Iterator[int]:
        """Go through the iterations after which a stage of training ends, up to the last one."""

    def samples_at(self, iteration: int, last: int) -> bool:
        """Return whether the rollouts of the iteration that begins at a state are kept."""


@dataclass(frozen=True)
class StoredCourse:
    """The course of a run: cut as the settings say, but for what is stored already.

    With ``recomputed``, a run that recomputes every stage, only stages with these keys count.
    """

    store: StageStore
    settings: ExperimentSettings
    recomputed: Container[str] | None = None

    def tested(self, keys: BaseKeys) -> list[str]:
        """Return the datasets that were made; those that are expected if none were made yet."""
        data = self.store.peek(keys.build_scenario().key, lately=True)
        if data is not None:
            untested = keys.scenario.untested
            return [name for name in dataset_names(data) if name not in untested]
        return sorted(keys.scenario.test_sets(keys.hyper_params))

    def stops(self, keys: TrainedArm) -> Iterator[int]:
        """Go along the longest stored chain, then from multiple to multiple of the periods.

        Of the chain no more than what stops where the arm itself has to.
        """
        position, last = 0, keys.num_iterations
        cut = Cut.of(self.settings, keys.periods, keys.boundaries)
        own = Cut(keys.periods, boundaries=keys.boundaries)
        for link in find_chain(self.store, keys, last, self.recomputed):
            if link.iteration > own.next_stop(position, last):
                break
            position = link.iteration
            yield position
        while position < last:
            position = cut.next_stop(position, last)
            yield position

    def samples_at(self, iteration: int, last: int) -> bool:
        """Return whether the settings ask for the rollouts."""
        return Cut.of(self.settings).samples_at(iteration, last)


class RecordedCourse:
    """The course that a run has taken so far, by name and iteration of an arm's recorded stages."""

    def __init__(self, places: Iterable[tuple[str, int]]) -> None:
        self._places = set(places)

    def tested(self, keys: BaseKeys) -> list[str]:
        """Return the datasets of recorded tests."""
        names = {name for name, _ in self._places if name.partition("-")[0] == "test"}
        return [name.partition("-")[2] or TEST_DATASET for name in sorted(names)]

    def stops(self, keys: TrainedArm) -> Iterator[int]:
        """Go through the recorded iterations, and to the end."""
        recorded = {iteration for name, iteration in self._places if name == "train"}
        stops = {*recorded, *keys.boundaries}
        yield from sorted(stops)
        if max(stops, default=0) < keys.num_iterations:
            yield keys.num_iterations

    def samples_at(self, iteration: int, last: int) -> bool:
        """Return whether rollouts were recorded."""
        return ("rollouts", iteration) in self._places


def recorded_calls(
    keys: BaseKeys, places: Iterable[tuple[str, int]]
) -> Mapping[tuple[str, int], StageCall]:
    """Return the stages of an arm by name and iteration, on the course that a run has taken."""
    return {
        (call.name, call.iteration): call for call in in_order(keys.stages(RecordedCourse(places)))
    }
