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
from trainers.attribute_tree import ObjectGraph, take_attribute
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
        take_attribute(created_by_init, "recent", created_by_init, None, ObjectGraph())


def test_what_others_assign_is_not_the_trainers() -> None:
    mine = seeded()
    mine.ledger = threading.Lock()
    assert "ledger" not in take_attributes(mine)
    put_attributes(mine, take_attributes(mine))
    assert mine.ledger is not None


class Sharing(NamedTrainer):
    """Attributes that are the same objects, also across modules, lists and custom objects."""

    def __init__(self):
        self.log = []
        self.views = {"log": self.log, "again": [self.log]}
        self.head = torch.nn.BatchNorm1d(1)
        self.average = self.head.running_mean
        self.alias = self.head
        self.weight = self.head.weight
        self.optimizer = torch.optim.SGD(self.head.parameters(), lr=0.1)
        self.table = np.zeros(2)
        self.buffer = torch.zeros(2)
        self.recent = self.buffer
        self.holder = Holder(self)

    def learn(self):
        self.log.append(len(self.log))
        self.table += 1
        self.buffer.add_(1)
        self.holder.rows[0] += 1
        self.head(torch.tensor([[1.0], [3.0]])).sum().backward()
        self.optimizer.step()
        self.current = self.head

    def shared(self):
        return (
            self.views["log"] is self.log,
            self.views["again"][0] is self.log,
            self.average is self.head.running_mean,
            self.alias is self.head,
            self.weight is self.head.weight,
            self.optimizer.param_groups[0]["params"][0] is self.weight,
            self.holder.table is self.table,
            self.holder.rows is not self.table,
            self.recent is self.buffer,
            self.current is self.head,
        )


class Holder:
    def __init__(self, trainer):
        self.table, self.trainer, self.rows = trainer.table, trainer, np.zeros(1)


def test_what_is_one_object_stays_one(tmp_path: Path) -> None:
    old, new = Sharing(), Sharing()
    for trainer in (old, new):
        take_attributes(trainer)
    old.learn()
    save_attributes(take_attributes(old), tmp_path)
    put_attributes(new, load_attributes(tmp_path))
    put_attributes(old, load_attributes(tmp_path))  # undisturbed, after a stage
    for trainer in (old, new):
        assert trainer.shared() == (True,) * 10
        trainer.learn()
        assert trainer.views["log"] == [0, 1]
        assert trainer.holder.table.tolist() == [2, 2]
        assert trainer.recent.tolist() == [2, 2]
        assert trainer.average.item() == old.average.item() != 0


def test_separate_equal_objects_stay_separate(tmp_path: Path) -> None:
    old, new = Sharing(), Sharing()
    for trainer in (old, new):
        take_attributes(trainer)
        trainer.learn()
    old.views["log"] = list(old.log)
    old.recent = old.buffer.clone()
    old.average = old.average.clone()
    save_attributes(take_attributes(old), tmp_path)
    put_attributes(new, load_attributes(tmp_path))
    assert new.shared()[:3] == (False, True, False)
    assert new.recent is not new.buffer
    new.learn()
    assert (new.recent.tolist(), new.buffer.tolist()) == ([1, 1], [2, 2])


def test_states_without_shared_objects_are_read() -> None:
    """States of earlier versions contain a copy at each path, and no order."""
    mine = seeded()
    stored = take_attributes(mine)
    del stored["$order"]
    mine.learn()
    put_attributes(mine, stored)
    assert mine.count == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("file", r"self\.extra: a _io\.TextIOWrapper cannot be stored"),
        ("counter", r"self\.extra: the function .*count uses 'number' of the function around"),
        ("collector", r"self\.extra\[0\]: the function .*<lambda> uses 'seen' of the function"),
    ],
)
def test_what_no_state_can_contain_is_refused_before_training(name, expected, tmp_path) -> None:
    def counter():
        number = 0

        def count():
            nonlocal number
            number += 1
            return number

        return count

    def collector():
        seen = []
        return [lambda value: seen.append(value)]

    made = {"file": (tmp_path / "x").open("w"), "counter": counter(), "collector": collector()}
    mine = Mine()
    mine.assign("extra", made[name])
    made["file"].close()
    with pytest.raises(StateError, match=expected):
        take_attributes(mine)


def test_functions_without_a_state_are_kept() -> None:
    factor, mine = 2, Mine()
    mine.assign("double", lambda value: factor * value)
    mine.assign("plain", lambda value: value)
    assert not {"double", "plain"} & take_attributes(mine).keys()
