"""Defects of TorchRL's trainer that Ratchet fixes.

Each test first shows that the defect still exists: when one fails, the fix can be removed.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections import Counter

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.record.loggers import Logger
from torchrl.trainers import ReplayBufferTrainer, Trainer
from torchrl.trainers.trainers import ValueEstimatorHook

from trainers.torchrl.recorder import reduce_values


def library(trainer, **changes):
    """Build the library's trainer alone, to be run by its own ``train``."""
    made = trainer.build_trainer()
    made.progress_bar = False
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def custom(small):
    return lambda **changes: small.build(small.custom_parameters(**changes))


def weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.loss_module.parameters()])


@pytest.mark.slow
def test_seeding_reproduces(custom, small):
    """``Trainer(seed=)`` seeds after networks and environments are created."""

    def alone():
        torch.seed()
        made = library(custom())
        made.seed = 3
        made.set_seed()
        made.train()
        return weights(made)

    assert not alone().equal(alone())
    runs = []
    for _ in range(2):
        torch.seed()
        trainer = custom()
        trainer.initial_state()
        trainer.run_iterations(0, 2)
        runs.append(weights(trainer.torchrl_trainer))
    assert runs[0].equal(runs[1])


def test_mean_losses_are_over_all_epochs(custom, monkeypatch):
    """The library's running mean restarts in each epoch, so that only the last counts."""

    def counting(trainer):
        step = iter(range(100))

        def loss_module(batch):
            return TensorDict({"loss": trainer.anchor.square() * 0 + float(next(step))}, [])

        trainer.anchor = next(iter(trainer.loss_module.parameters())).sum()
        trainer.loss_module, trainer.num_epochs = loss_module, 3
        trainer.optim_steps_per_batch = 2
        trainer._optimizer_ops.clear()
        return trainer

    trainer = custom(rl__num_iterations=1)
    alone = counting(library(trainer, total_frames=24))
    alone.train()
    assert alone._log_dict["loss"] == [pytest.approx(4.5)]  # of 4 and 5: the last epoch's
    trainer.initial_state()
    counting(trainer.torchrl_trainer)
    metrics = trainer.run_iterations(0, 1)[0]
    assert metrics["loss"] == pytest.approx(2.5)  # of 0 … 5
    assert metrics["optim_steps"] == 6


@pytest.mark.slow
def test_two_trainers_do_not_share_when_they_logged_last(custom):
    """``_last_log`` is a class attribute: metrics that one trainer logs, another omits."""
    one, other = library(custom()), library(custom())
    assert one._last_log is other._last_log
    ours = [custom(), custom()]
    for trainer in ours:
        trainer.initial_state()
    first, second = (trainer.torchrl_trainer for trainer in ours)
    assert first._last_log is not second._last_log
    assert ours[0].run_iterations(0, 1) == ours[1].run_iterations(0, 1)


class Collecting(Logger):
    """A logger with the library's interface that stores its input."""

    def __init__(self):
        super().__init__("collecting", "nowhere")
        self.seen = {}

    def _create_experiment(self):
        return self

    def log_scalar(self, name, value, step=None, **kwargs):
        self.seen[name] = value

    def log_video(self, *args, **kwargs): ...
    def log_hparams(self, *args, **kwargs): ...
    def __repr__(self):
        return "Collecting()"

    log_histogram = log_str = log_metrics = log_hparams


def with_metrics(trainer):
    def log(batch):
        return {
            "per_action": torch.tensor([1.0, 2.0, 6.0]),
            "flag": torch.tensor(True),
            "text": "x",
        }

    trainer.register_op("post_steps_log", log)
    return trainer


@pytest.mark.slow
def test_no_metric_is_dropped_for_having_a_dimension(custom, caplog):
    """The library leaves out tensors with a dimension, without a word."""
    trainer = custom()
    seen = Collecting()
    alone = with_metrics(library(trainer, logger=seen, _log_interval=-1))
    alone.register_op("post_steps_log", lambda batch: None)
    alone._log(per_action=torch.ones(3), plain=torch.tensor(2.0))
    assert seen.seen.keys() == {"plain"}
    trainer.initial_state()
    with_metrics(trainer.torchrl_trainer)
    with caplog.at_level(logging.WARNING):
        metrics = trainer.run_iterations(0, 1)[0]
    assert (metrics["per_action"], metrics["flag"]) == (3.0, 1.0)
    assert "metric 'text' is 'x', no number" in caplog.text  # said, not silently


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 5], 5.0),  # counts: the last
        ([1.0, 5.0], 3.0),
        ([torch.tensor([1.0, 3.0]), torch.tensor(4.0)], 3.0),
        ([True, False], 0.5),
        (["a"], None),
        ([torch.empty(0)], None),
    ],
)
def test_what_an_iteration_logged_becomes_one_number(values, expected):
    assert reduce_values(values) == expected


def counted(method, counts):
    """Count the calls of a method by its class."""

    @functools.wraps(method)
    def counting(self, batch):
        counts[type(self).__name__] += 1
        return method(self, batch)

    return counting


@pytest.mark.slow
@pytest.mark.parametrize(("refresh", "expected"), [(False, 1), (True, 2)])
def test_advantages_and_buffer_are_made_once_a_batch(small, monkeypatch, refresh, expected):
    """The library makes them in each epoch again, here twice."""
    counts = Counter()
    for hook, name in ((ValueEstimatorHook, "__call__"), (ReplayBufferTrainer, "extend")):
        monkeypatch.setattr(hook, name, counted(getattr(hook, name), counts))
    trainer = small.make("ppo", torchrl__refresh_each_epoch=refresh)
    alone = library(trainer, total_frames=24)
    alone.train()
    assert counts == {"ValueEstimatorHook": 2, "ReplayBufferTrainer": 2}
    counts.clear()
    trainer.initial_state()
    trainer.run_iterations(0, 1)
    number = expected * trainer.batches_per_iteration
    assert counts == {"ValueEstimatorHook": number, "ReplayBufferTrainer": number}


@pytest.mark.slow
def test_frames_played_at_random_are_learned_from(small):
    """The library omits them from the buffer, which it extends in epochs: none have run yet."""
    alone = library(small.make("dqn"), total_frames=24)
    alone.collector.init_random_frames = 1000
    alone.train()
    assert len(alone.replay_buffer) == 0
    trainer = small.make("dqn", collector__init_random_frames=96)
    trainer.initial_state()
    trainer.run_iterations(0, 1)
    assert len(trainer.torchrl_trainer.replay_buffer) == 48
    assert trainer.torchrl_trainer._optim_count == 0


@pytest.mark.slow
def test_loggers_and_checkpoints_of_the_library_give_way_and_that_is_said(small, caplog, tmp_path):
    """Its MLflow logger logs key by key and opens its own runs; Ratchet's gets one batch."""
    trainer = small.build(small.custom_parameters())
    build = trainer.build_trainer
    seen = Collecting()

    def build_trainer():
        made = build()
        made.logger, made.save_trainer_file = seen, str(tmp_path / "x.pt")
        return made

    trainer.build_trainer = build_trainer
    with caplog.at_level(logging.WARNING):
        trainer.initial_state()
    assert "logger Collecting is not used" in caplog.text
    assert "own checkpoints are not used" in caplog.text
    trainer.run_iterations(0, 3)
    assert seen.seen == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_group_for_a_logger_is_accepted_and_spoken_of(small, caplog):
    trainer = small.make("ppo", torchrl__config__trainer__save_trainer_file="x.pt")
    with caplog.at_level(logging.WARNING):
        trainer.initial_state()
    assert "torchrl.config.save_trainer_file is not used" in caplog.text


@pytest.mark.slow
def test_what_cannot_be_kept_from_stage_to_stage_is_refused(small):
    from ratchet.errors import ParameterError

    for change, message in (
        ({"trainer__async_collection": True}, "async_collection: got true"),
        ({"torchrl__choices": {"replay_buffer.sampler": "consuming"}}, "sampler: got consuming"),
    ):
        trainer = small.make("dqn", **change)
        with pytest.raises(ParameterError, match=message):
            trainer.initial_state()

    class Custom(Trainer):
        def train(self):
            raise AssertionError

    trainer = small.build(small.custom_parameters())
    build = trainer.build_trainer

    def build_trainer():
        made = build()
        made.__class__ = Custom
        return made

    trainer.build_trainer = build_trainer
    with (
        warnings.catch_warnings(),
        pytest.raises(ParameterError, match=r"Custom overrides train\(\)"),
    ):
        trainer.initial_state()


def test_samples_of_custom_buffers_do_not_depend_on_the_timing_of_prefetching(custom, caplog):
    """A prefetched sample is drawn in another thread, perhaps before frames that are new."""

    def prefetching():
        trainer = custom()
        build = trainer.build_trainer

        def build_trainer():
            made = build()
            storage = LazyTensorStorage(24)
            buffer = TensorDictReplayBuffer(storage=storage, batch_size=8, prefetch=3)
            ReplayBufferTrainer(buffer, flatten_tensordicts=True).register(made)
            return made

        trainer.build_trainer = build_trainer
        return trainer

    whole, cut, resumed = (prefetching() for _ in range(3))
    with caplog.at_level(logging.WARNING):
        whole.initial_state()
    assert "prefetch is not used" in caplog.text
    metrics = whole.run_iterations(0, 3)
    cut.initial_state()
    assert cut.run_iterations(0, 2) == metrics[:2]
    resumed.state = cut.state
    assert resumed.run_iterations(2, 3) == metrics[2:]
    assert resumed.state == whole.state
