"""The chain of stored states up to the first gap."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ratchet.parameters.settings import ExperimentSettings
from tasks.stages.sequence import StageBoundaries, StoredStageLayout, find_chain


@dataclass
class Link:
    start_iteration: int
    iteration: int


class FakeStore:
    """Store with the states after these iterations, each computed from an earlier one."""

    def __init__(self, links):
        self.links = {str(stop): Link(start, stop) for start, stop in links}

    def find(self, key):
        return self.links.get(key)


class FakeKeys:
    num_iterations = 7
    periods = ()
    boundaries = (3,)

    def state_key(self, iteration):
        return str(iteration)


@pytest.mark.parametrize(
    ("links", "target", "expected"),
    [
        ([], 7, []),
        ([(0, 3), (3, 6), (6, 7)], 7, [3, 6, 7]),
        ([(0, 3), (3, 6), (6, 9)], 7, [3, 6]),
        ([(0, 3), (6, 7)], 7, [3]),
        ([(3, 6), (6, 7)], 7, []),
        ([(0, 7), (0, 3)], 7, [7]),
        ([(0, 3), (3, 6), (2, 7)], 7, [3, 6]),
        ([(0, 3)], 0, []),
        ([(7, 7)], 7, []),
    ],
)
def test_the_latest_state_without_a_gap_is_found(links, target, expected):
    chain = find_chain(FakeStore(links), FakeKeys(), target)
    assert [link.iteration for link in chain] == expected


@pytest.mark.parametrize(
    ("position", "target", "size", "stop"),
    [(0, 25, 10, 10), (10, 25, 10, 20), (20, 25, 10, 25), (7, 25, 10, 10), (0, 3, 10, 3)],
)
def test_training_is_split_at_multiples_of_the_stage_size(position, target, size, stop):
    assert StageBoundaries((size,)).next_stop(position, target) == stop


@pytest.mark.parametrize(("position", "stop"), [(0, 3), (3, 7), (7, 10), (10, 20)])
def test_training_is_split_once_at_each_boundary(position, stop):
    assert StageBoundaries((10,), boundaries=(3, 7)).next_stop(position, 25) == stop


@pytest.mark.parametrize(
    ("links", "stops"),
    [
        ([], [2, 3, 4, 6, 7]),
        ([(0, 3)], [3, 4, 6, 7]),
        ([(0, 3), (3, 7)], [3, 7]),
        ([(0, 7)], [2, 3, 4, 6, 7]),
    ],
)
def test_stored_links_are_used_up_to_one_that_passes_over_a_boundary(links, stops):
    settings = ExperimentSettings(iterations_per_task=2)
    layout = StoredStageLayout(FakeStore(links), settings)
    assert list(layout.stops(FakeKeys())) == stops


def test_every_period_splits_training_and_samples_only_existing_iterations():
    settings = ExperimentSettings(
        iterations_per_task=10, checkpoint_period=4, rollout_sample_period=6
    )
    cut, stops = StageBoundaries.from_settings(settings), [0]
    while stops[-1] < 18:
        stops.append(cut.next_stop(stops[-1], 18))
    assert stops == [0, 4, 6, 8, 10, 12, 16, 18]
    assert [stop for stop in stops if cut.samples_at(stop, 18)] == [0, 6, 12]
    assert not StageBoundaries.from_settings(ExperimentSettings()).samples_at(0, 18)
