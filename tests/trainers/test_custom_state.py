"""Attributes that a custom class assigns to ``self``: contents of states, and refusals."""

from __future__ import annotations

import functools
import re
import threading
from collections import Counter, deque
from pathlib import Path

import numpy as np
import pytest
import torch

from ratchet.errors import StateError
from trainers.attribute_tree import take_attribute
from trainers.custom_state import (
    load_attributes,
    put_attributes,
    save_attributes,
    take_attributes,
)
from trainers.named import NamedTrainer


class Mine(NamedTrainer):
    transient_attributes = ("connection",)

    def __init__(self):
        self.count, self.seen, self.names = 0, deque([1.0], maxlen=2), {"b", "a"}
        self.tallies = Counter()
        self.heads = [torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)]
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.log_alpha], lr=0.1)
        self.random = np.random.default_rng(1)
        self.pattern, self.function = re.compile("a"), functools.partial(max, 1)
        self.connection = threading.Lock()

    def learn(self):
        self.count += 1
        self.seen.append(float(self.random.random()))
        self.tallies["learned"] += 1
        self.last = torch.full((2,), float(self.count))
        self.by_iteration = {self.count: (self.count, None)}
        loss = (self.log_alpha - 1).square().sum() + self.heads[1](torch.ones(1, 1)).sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            self.heads[1].weight.add_(1)

    def assign(self, name, value):
        setattr(self, name, value)

    def summary(self):
        return (
            *(self.count, list(self.seen), self.names, self.tallies, self.last.tolist()),
            *(self.by_iteration, self.log_alpha.item(), self.heads[1].weight.item()),
        )


def seeded():
    torch.manual_seed(0)
    mine = Mine()
    take_attributes(mine)
    return mine


def test_a_new_trainer_continues_as_the_old_one_does(tmp_path: Path) -> None:
    old = seeded()
    old.learn()
    save_attributes(take_attributes(old), tmp_path)
    new = seeded()
    put_attributes(new, load_attributes(tmp_path))
    for trainer in (old, new):
        trainer.learn()
    assert new.summary() == old.summary()
    assert new.optimizer.param_groups[0]["params"][0] is new.log_alpha, "restored in place"


def test_a_state_shares_nothing_with_the_trainer() -> None:
    old = seeded()
    old.learn()
    state = take_attributes(old)
    before = old.summary()
    old.learn()
    put_attributes(old, state)
    assert old.summary() == before


def test_attributes_of_later_are_removed_when_an_earlier_state_is_restored() -> None:
    mine = seeded()
    state = take_attributes(mine)
    mine.learn()
    put_attributes(mine, state)
    assert not hasattr(mine, "last")
    assert mine.connection is not None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (threading.Lock(), "self.extra: a _thread.lock cannot be stored"),
        ({"inner": [b"bytes"]}, r"self.extra\['inner'\]\[0\]: a builtins.bytes cannot be stored"),
        (torch.nn.Linear(1, 1), "self.extra: a torch.nn.modules.linear.Linear that was assigned"),
        ([torch.nn.Linear(1, 1)], "self.extra: a builtins.list that was assigned during training"),
    ],
)
def test_an_attribute_that_cannot_be_restored_is_named(value: object, expected: str) -> None:
    mine = seeded()
    mine.assign("extra", value)
    with pytest.raises(StateError, match=expected):
        take_attributes(mine)
    assert "extra" not in take_attributes(mine, strict=False)


def test_objects_in_a_deque_are_refused_when_they_are_stored() -> None:
    created_by_init = deque([torch.nn.Linear(1, 1)])
    with pytest.raises(StateError, match=r"recent\[0\]: a torch.*Linear in a deque cannot be"):
        take_attribute(created_by_init, "recent", created_by_init, None)


def test_what_others_assign_is_not_the_trainers() -> None:
    mine = seeded()
    mine.ledger = threading.Lock()
    assert "ledger" not in take_attributes(mine)
    put_attributes(mine, take_attributes(mine))
    assert mine.ledger is not None
