"""Find how far training has come: the chain of stored train stages that ends furthest.

The key of a state depends on how many iterations it has, not on how they were cut; the metrics
lie in the links, so that a chain counts only without a gap.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ratchet.store.manifest import Manifest

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.store import StageStore


class TrainedArm(Protocol):
    """What the keys of an arm say of its training."""

    @property
    def num_iterations(self) -> int:
        """The number of the arm's training iterations."""

    @property
    def periods(self) -> tuple[int, ...]:
        """By what training is cut beside what the settings say."""

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Iterations after which a stage of training ends in any case, in order."""

    def state_key(self, iteration: int) -> str:
        """Return the key of the stage whose result is the state after so many iterations."""


def find_chain(
    store: StageStore, keys: TrainedArm, target: int, among: Container[str] | None = None
) -> list[Manifest]:
    """Return the stored links from the initial state to the furthest state up to ``target``.

    In the order of training, each beginning where the one before ends; empty if nothing is there to
    begin with. With ``among``, only stages with these keys count.
    """
    for iteration in range(target, 0, -1):
        if among is not None and keys.state_key(iteration) not in among:
            continue
        links = trace_chain(store, keys, iteration)
        if links is not None:
            return links
    return []


def trace_chain(store: StageStore, keys: TrainedArm, iteration: int) -> list[Manifest] | None:
    """Follow the links from a state back to the initial one; None if one is missing."""
    links: list[Manifest] = []
    while iteration > 0:
        manifest = store.find(keys.state_key(iteration))
        if manifest is None or not manifest.start_iteration < iteration:
            return None
        links.append(manifest)
        iteration = manifest.start_iteration
    return links[::-1]


@dataclass(frozen=True)
class Cut:
    """Where training is cut into stages, and which states are played from for a sample.

    Every period (``settings.iterations_per_task``, ``checkpoint_period``,
    ``rollout_sample_period``) cuts at its multiples, so that runs of different lengths share their
    stages; no state depends on it. So do ``boundaries``, once each. Rollouts of every
    ``sample_period``-th iteration are kept; of none when None.
    """

    periods: tuple[int, ...]
    sample_period: int | None = None
    boundaries: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        settings: ExperimentSettings,
        own: tuple[int, ...] = (),
        boundaries: tuple[int, ...] = (),
    ) -> Cut:
        """Read the settings; an arm itself is cut by its ``own`` periods and its ``boundaries``."""
        periods = (
            settings.iterations_per_task,
            settings.checkpoint_period,
            settings.rollout_sample_period,
            *own,
        )
        given = tuple(period for period in periods if period is not None)
        return cls(given, settings.rollout_sample_period, boundaries)

    def next_stop(self, position: int, target: int) -> int:
        """Return the end of the next train stage: the next multiple of a period, or the end."""
        multiples = ((position // period + 1) * period for period in self.periods)
        return min([target, *multiples, *(each for each in self.boundaries if each > position)])

    def samples_at(self, position: int, target: int) -> bool:
        """Return whether the rollouts of the iteration that begins at a state are kept."""
        period = self.sample_period
        return period is not None and position < target and position % period == 0
