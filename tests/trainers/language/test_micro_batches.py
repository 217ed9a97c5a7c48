"""Parts of a minibatch: by rows or tokens, chosen from a card's memory once and then kept."""

from __future__ import annotations

import logging
from itertools import chain

import numpy as np
import pytest
import torch

from ratchet.rollouts import Batch
from tests.trainers.language.conftest import differ, weights_of
from trainers.language import self_hosted
from trainers.language.cross_entropy import CrossEntropyTrainer
from trainers.language.dpo import DpoTrainer
from trainers.language.grpo import GrpoTrainer
from trainers.language.micro_batches import split_rows, split_tokens
from trainers.language.ppo import LanguagePpoTrainer
from trainers.language.ranks.rows import RankShare

CE = {"cross_entropy": {"min_reward": 0.2}}
LIMITED = 25
"""Tokens; rows have up to 10."""


def parts_of_all(split, world_size, together):
    """The rows that count, by process and part, after checks that hold for every split."""
    parts = [split(RankShare(rank, world_size)) for rank in range(world_size)]
    assert len({len(of_rank) for of_rank in parts}) == 1, "weights are gathered together"
    for rows, _ in chain(*parts):
        starts = rows[::together]
        assert list(rows) == [row for start in starts for row in range(start, start + together)]
        assert not any(start % together for start in starts)
    return [[list(rows) for rows, counts in of_rank if counts] for of_rank in parts]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize(("blocks", "together"), [(1, 1), (2, 1), (7, 1), (16, 1), (5, 2), (8, 3)])
def test_parts_are_all_rows_once_and_blocks_stay_together(world_size, blocks, together):
    count = blocks * together
    lengths = np.random.default_rng(count).integers(1, 30, count).tolist()
    for max_rows in (None, 1, 2, 4, 100):
        parts = parts_of_all(
            lambda share, most=max_rows: split_rows(count, share, together=together, max_rows=most),
            world_size,
            together,
        )
        shares = [list(chain(*of_rank)) for of_rank in parts]
        assert list(chain(*shares)) == list(range(count)), "in their order"
        assert max(map(len, shares)) == -(-blocks // world_size) * together, "divided first"
        largest = max(map(len, chain(*parts)))
        assert largest <= (max_rows or count) + together - 1
    for max_tokens in (1, 40, 64, 10**6):
        parts = parts_of_all(
            lambda share, most=max_tokens: split_tokens(lengths, most, share, together=together),
            world_size,
            together,
        )
        rows = list(chain(*chain(*parts)))
        assert sorted(rows) == list(range(count))
        for part in chain(*parts):
            padded = len(part) * max(lengths[row] for row in part)
            assert padded <= max_tokens or len(part) == together
        if max_tokens == 10**6:
            assert rows == list(range(count)), "all at a time keep their order"


def test_the_longest_are_read_first_and_ties_keep_their_order():
    split = split_tokens([3, 9, 3, 9, 1, 3], 18, RankShare())
    assert split == [([1, 3], True), ([0, 2, 5, 4], True)]
    pairs = split_tokens([1, 8, 2, 2, 3, 8], 17, RankShare(1, 2), together=2)
    assert pairs == [([4, 5], True), (range(2, 4), False)], "padding is the shortest block"


@pytest.mark.parametrize(
    "trainer_class", [GrpoTrainer, LanguagePpoTrainer, CrossEntropyTrainer, DpoTrainer]
)
def test_parts_by_tokens_change_neither_loss_nor_gradients(trainer_class, connected, play):
    config = {"num_epochs": 2, "optimizer": {"lr": 1e-3, "max_grad_norm": 100.0}, **CE}
    complete, parts = (connected(trainer_class, **config) for _ in range(2))
    parts._micro_batch_tokens = LIMITED
    read, score = [], parts.model.score

    def count(ids, mask, *more, **options):
        read.append(len(ids) * int(mask.sum(1).max()))
        return score(ids, mask, *more, **options)

    parts.model.score = count
    metrics = [trainer.train(play()) for trainer in (complete, parts)]
    assert metrics[0] == pytest.approx(metrics[1], abs=1e-6)
    assert max(read) <= LIMITED
    assert len(read) > 2
    for one, other in zip(
        complete._learning_parameters(), parts._learning_parameters(), strict=True
    ):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-6)


def test_log_probabilities_of_parts_are_in_the_order_of_the_rows(connected, play):
    trainer = connected(LanguagePpoTrainer)
    batch = Batch.from_trajectories(play(), 0)
    reads = [trainer._compute_old_log_probs, trainer._compute_old_values]
    trainer._value_head.weight.data.fill_(0.1)
    expected = [read(batch) for read in reads]
    for tokens in (1, LIMITED):
        trainer._micro_batch_tokens = tokens
        for read, complete in zip(reads, expected, strict=True):
            torch.testing.assert_close(read(batch), complete, rtol=0, atol=1e-6)


@pytest.fixture
def card(monkeypatch):
    """Pretend that the model is on a card on which this number of tokens fits."""

    def insert(tokens: int | None) -> None:
        monkeypatch.setattr(self_hosted, "device_memory", lambda model: tokens and 2**30 * tokens)
        monkeypatch.setattr(self_hosted, "fitting_tokens", lambda memory, *_, **__: tokens)

    return insert


def test_another_card_continues_with_the_parts_of_the_first(connected, play, card, caplog):
    card(LIMITED)
    caplog.set_level(logging.INFO, "trainers.language.self_hosted")
    through, first = (connected(GrpoTrainer) for _ in range(2))
    assert "micro_batch_tokens" not in first.take_state(), "chosen by the first step"
    for trainer, seeds in ((through, (0, 1, 2)), (first, (0, 1))):
        for seed in seeds:
            trainer.train(play(seed=seed))
    line = f"micro-batches of at most {LIMITED} tokens, chosen for {LIMITED} GiB"
    assert [record.message for record in caplog.records].count(line) == 2, "once a trainer"
    state = first.take_state()
    assert state["micro_batch_tokens"] == LIMITED
    for tokens in (7, 10**6, None):
        card(tokens)
        resumed = connected(GrpoTrainer)
        resumed.put_state(state)
        resumed.train(play(seed=2))
        assert differ(weights_of(through), weights_of(resumed)) == 0
        assert resumed.take_state()["micro_batch_tokens"] == LIMITED
    earlier = {name: entry for name, entry in state.items() if name != "micro_batch_tokens"}
    card(7)
    resumed.put_state(earlier)
    resumed.train(play(seed=2))
    assert resumed.take_state()["micro_batch_tokens"] == 7, "states of before choose"


def test_a_cpu_and_a_number_of_rows_choose_no_tokens(connected, play, card):
    card(LIMITED)
    by_rows = connected(GrpoTrainer, micro_batch_size=4)
    by_rows.train(play())
    card(None)
    on_cpu = connected(GrpoTrainer)
    on_cpu.train(play())
    for trainer in (by_rows, on_cpu):
        assert "micro_batch_tokens" not in trainer.take_state()
