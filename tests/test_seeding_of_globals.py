"""Seeding the global generators has no lasting effects."""

import random

import numpy as np
import torch

from ratchet.seeding import seeded_globals


def draw():
    return random.random(), np.random.random(), torch.rand(3).tolist()  # noqa: NPY002


def test_nothing_is_written_down_for_devices_that_are_not_there():
    waiting = torch.cuda._queued_calls
    before = len(waiting)
    with seeded_globals(5):
        first = draw()
    with seeded_globals(5):
        assert draw() == first
    assert torch.cuda.is_available() or len(waiting) == before


def test_what_was_drawn_before_goes_on_where_it_was():
    with seeded_globals(1):
        draw()
        through = draw()
    with seeded_globals(1):
        draw()
        with seeded_globals(2):
            inside = draw()
        after = draw()
    assert after == through
    assert all(one != other for one, other in zip(inside, through, strict=True))
