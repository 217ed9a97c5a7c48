"""Plans of rollouts: datapoints and seeds as a pure function of seed and iteration."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.rollouts.dataset import DataOrder
from ratchet.seeding import derive_seed

TRAIN_STAGE = "sample_rollouts"
TEST_STAGE = "test"


@dataclass(frozen=True)
class PlannedRollout:
    """A rollout to collect: its datapoint and the protocol's seed (31 bits)."""

    rollout_id: int
    datapoint_id: int
    seed: int


def train_plan(
    seed: int, iteration: int, size: int, count: int, each: int = 1
) -> list[PlannedRollout]:
    """Plan ``each`` rollouts of each of a training iteration's ``count`` datapoints, of ``size``.

    Across iterations, each datapoint is used once before any is repeated.
    """
    order = DataOrder(seed, size, purpose="train")
    ids = order.take(iteration * count, count).repeat(each)
    return [
        PlannedRollout(index, int(datapoint), _seed(seed, TRAIN_STAGE, iteration, index))
        for index, datapoint in enumerate(ids)
    ]


def test_plan(seed: int, size: int, count: int | None, each: int) -> list[PlannedRollout]:
    """Plan the rollouts of a test: the same in each iteration, so that tests are paired.

    ``count`` of ``size`` datapoints are used, ``each`` times; all, in order, if None.
    """
    if count is None:
        ids = list(range(size))
    else:
        order = DataOrder(seed, size, purpose="test")
        ids = [int(datapoint) for datapoint in order.take(0, count)]
    return [
        PlannedRollout(index, datapoint, _seed(seed, TEST_STAGE, 0, index))
        for index, datapoint in enumerate(datapoint for datapoint in ids for _ in range(each))
    ]


test_plan.__test__ = False  # type: ignore[attr-defined]  # not a test case


def call_seed(seed: int, *, training: bool, iteration: int) -> int:
    """Return the base seed of an iteration's calls; the same for all tests."""
    if training:
        return derive_seed(seed, TRAIN_STAGE, iteration, "calls")
    return derive_seed(seed, TEST_STAGE, 0, "calls")


def _seed(seed: int, stage: str, iteration: int, index: int) -> int:
    return derive_seed(seed, stage, iteration, "rollout", str(index)) >> 32
