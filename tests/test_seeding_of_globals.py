"""Seeding the global generators has no lasting effects."""

import random

import numpy as np
import torch

from ratchet.seeding import seeded_globals


def draw():
    return random.random(), np.random.random(), torch.rand(3).tolist()  # noqa: NPY002


def test_seeding_queues_no_calls_for_missing_devices():
    waiting = torch.cuda._queued_calls
    before = len(waiting)
    with seeded_globals(5):
        first = draw()
    with seeded_globals(5):
        assert draw() == first
    assert torch.cuda.is_available() or len(waiting) == before


def test_outer_generators_continue_after_inner_seeding():
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
