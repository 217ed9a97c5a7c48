"""All eighteen hook points are called, in the documented order, and every hook class works."""

from __future__ import annotations

import inspect

import pytest
import torch
import torchrl.trainers
from tensordict import TensorDict
from torchrl.envs import GymEnv, TransformedEnv
from torchrl.objectives.utils import HardUpdate, SoftUpdate
from torchrl.objectives.value import GAE
from torchrl.trainers import (
    BatchSubSampler,
    ClearCudaCache,
    CountFramesLog,
    EarlyStopping,
    LogScalar,
    LogTiming,
    LogValidationReward,
    LRSchedulerHook,
    OptimizerHook,
    ReplayBufferTrainer,
    RewardNormalizer,
    SelectKeys,
    TargetNetUpdaterHook,
    TrainerHookBase,
    UpdateWeights,
    UTDRHook,
    ValueEstimatorHook,
)

from trainers.torchrl.snapshots import HOOK_POINTS, hooks, operations

TEN = (  # of the library's guide to hooks
    "batch_process",
    "pre_optim_steps",
    "process_optim_batch",
    "post_loss",
    "post_steps",
    "post_optim",
    "pre_steps_log",
    "post_steps_log",
    "post_optim_log",
    "optimizer",
)
STEP = ["process_optim_batch", "post_loss", "process_loss", "optimizer", "post_optim"]
EPOCH = ["pre_epoch_log", "pre_epoch", *2 * [*STEP, "post_optim_log"]]
EPOCH += ["post_epoch_log", "post_epoch"]
BATCH = ["batch_process", "pre_steps_log", "pre_optim_steps", *2 * EPOCH]
BATCH += ["post_optim_complete_log", "post_steps", "post_steps_log"]


def recording(trainer, calls):
    """Register a hook at each point that records its name and returns its input."""

    def hook(point):
        def record(*args):
            calls.append(point)
            return args[0] if point == "pre_epoch" else None

        return record

    for point in HOOK_POINTS:
        trainer.register_op(point, hook(point))


@pytest.fixture
def recorded(small, monkeypatch):
    """Return a trainer of two iterations with recording hooks, and their records."""
    calls = []
    made = small.build(small.custom_parameters(rl__num_iterations=2, rl__num_epochs=2))
    build = made.build_trainer

    def build_trainer():
        trainer = build()
        trainer.num_epochs = 2
        recording(trainer, calls)
        return trainer

    monkeypatch.setattr(made, "build_trainer", build_trainer)
    return made, calls


def test_every_point_is_called_in_the_order_of_the_loop(recorded):
    trainer, calls = recorded
    trainer.initial_state()
    trainer.run_iterations(0, 2)
    assert calls == ["setup", *BATCH, *BATCH, "shutdown"]
    assert set(calls) == set(HOOK_POINTS)
    assert len(HOOK_POINTS) == 18
    assert {*TEN} < {*HOOK_POINTS}


@pytest.mark.slow
def test_the_library_calls_them_in_the_same_order(recorded):
    trainer, calls = recorded
    library = trainer.build_trainer()
    library.progress_bar = False
    library.train()
    assert calls == ["setup", *BATCH, *BATCH, "shutdown"]


@pytest.mark.slow
def test_a_cut_calls_setup_again_and_shutdown_once(recorded, small):
    trainer, calls = recorded
    trainer.initial_state()
    trainer.run_iterations(0, 1)
    state = trainer.state
    trainer.close()
    trainer.state = state
    trainer.run_iterations(1, 2)
    assert calls == ["setup", *BATCH, "setup", *BATCH, "shutdown"]


def rolling_frames():
    return TensorDict({"next": {"reward": torch.arange(4.0).unsqueeze(-1)}}, batch_size=[4])


MADE = {
    "BatchSubSampler": lambda t: BatchSubSampler(8),
    "ClearCudaCache": lambda t: ClearCudaCache(2),
    "CountFramesLog": lambda t: CountFramesLog(frame_skip=2),
    "EarlyStopping": lambda t: EarlyStopping(monitor="mean_reward", wait_for=10**6),
    "LogScalar": lambda t: LogScalar(("next", "reward"), "reward"),
    "LogTiming": lambda t: LogTiming(),
    "LogValidationReward": lambda t: LogValidationReward(
        record_interval=1,
        record_frames=5,
        policy_exploration=t.loss_module.actor_network,
        environment=TransformedEnv(GymEnv("CartPole-v1")),
    ),
    "LRSchedulerHook": lambda t: LRSchedulerHook(
        torch.optim.lr_scheduler.StepLR(t.optimizer, 1, gamma=0.5)
    ),
    "RewardNormalizer": lambda t: RewardNormalizer(),
    "SelectKeys": lambda t: SelectKeys(
        ["observation", "action", "action_log_prob", "next", "advantage", "value_target"]
    ),
    "UTDRHook": lambda t: UTDRHook(t),
    "UpdateWeights": lambda t: UpdateWeights(t.collector, 1),
    "ValueEstimatorHook": lambda t: ValueEstimatorHook(
        GAE(gamma=0.9, lmbda=0.9, value_network=t.loss_module.critic_network)
    ),
}
TRIED_ELSEWHERE = {
    "ReplayBufferTrainer": "with every algorithm but that of the example",
    "TargetNetUpdaterHook": "below, and with every algorithm that has target networks",
    "OptimizerHook": "with every trainer that has an optimizer",
    "TrainerHookBase": "the base",
}


def shipped():
    return {
        name
        for name, found in vars(torchrl.trainers).items()
        if inspect.isclass(found) and issubclass(found, TrainerHookBase)
    } | {name for name in torchrl.trainers.__all__ if name.endswith("Hook")}


def test_no_hook_class_of_the_library_is_forgotten():
    steppers = {name for name in shipped() if name.endswith("Stepper")}
    assert shipped() - steppers == {*MADE} | {*TRIED_ELSEWHERE}


def with_hooks(small, names, iterations=3):
    """Build the example's trainer with further hooks of the library."""
    made = small.build(small.custom_parameters(rl__num_iterations=iterations))
    build = made.build_trainer

    def build_trainer():
        trainer = build()
        trainer._process_optim_batch_ops.clear()  # it has a subsampler already
        trainer._modules.pop("batch_subsampler")
        if names != ["BatchSubSampler"]:
            MADE["BatchSubSampler"](trainer).register(trainer, "batch_subsampler")
        trainer.replay_buffer = None
        for name in names:
            if name == "UTDRHook":  # it needs a buffer of the collector, which is missing
                trainer.collector.getattr_rb = lambda key: {"write_count": 0, "batch_size": 1}[key]
            MADE[name](trainer).register(trainer, name.lower())
        return trainer

    made.build_trainer = build_trainer
    return made


@pytest.mark.in_turn(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MADE))
def test_a_hook_of_the_library_registers_works_and_resumes(small, name):
    whole = with_hooks(small, [name])
    whole.initial_state()
    metrics = whole.run_iterations(0, 2)
    cut = with_hooks(small, [name])
    cut.initial_state()
    first = cut.run_iterations(0, 1)
    resumed = with_hooks(small, [name])
    resumed.state = cut.state
    metrics_again = [*first, *resumed.run_iterations(1, 2)]
    assert resumed.state == whole.state
    if name != "LogTiming":
        assert metrics_again == metrics
    assert any(type(hook).__name__ == name for _, hook in hooks(whole.torchrl_trainer))
    expected = {
        "CountFramesLog": ("n_frames", 96.0),
        "LogScalar": ("reward", 1.0),
        "LogTiming": ("time/hook/LogScalar", None),
        "LogValidationReward": ("r_evaluation", 1.0),
    }.get(name)
    if expected is not None:
        assert expected[0] in metrics[1]
        assert expected[1] in (None, metrics[1][expected[0]])


@pytest.mark.slow
def test_states_of_hooks_that_are_registered_as_operations_only_resume_too(small):
    """The algorithm trainers register so: schedules, target networks, weights for the collector."""
    trainer = small.make("dqn")
    trainer.initial_state()
    updater = trainer.torchrl_trainer.target_net_updater
    assert isinstance(updater, HardUpdate)
    trainer.run_iterations(0, 2)
    other = small.make("dqn")
    other.state = trainer.state
    assert other.torchrl_trainer.target_net_updater.counter == updater.counter > 0
    counters = [
        hook.counter
        for each in (trainer, other)
        for _, hook in hooks(each.torchrl_trainer)
        if isinstance(hook, UpdateWeights)
    ]
    assert counters == [4, 4]


@pytest.mark.slow
def test_a_target_updater_steps_where_the_library_registers_it(small):
    trainer = small.make("sac").build_trainer()
    updater = trainer.target_net_updater
    assert isinstance(updater, SoftUpdate)
    before = len(operations(trainer, "post_steps"))
    TargetNetUpdaterHook(updater).register(trainer, "targets")
    assert len(operations(trainer, "post_steps")) == before + 1


class LoggingHook(TrainerHookBase):
    """As in the library's guide: it calls its state ``save_dict``."""

    def __init__(self):
        self.counter = 0

    def register(self, trainer, name):
        trainer.register_module(name, self)
        trainer.register_op("post_optim_log", self)

    def save_dict(self):
        return {"counter": self.counter}

    def load_state_dict(self, state_dict):
        self.counter = state_dict["counter"]

    def __call__(self, batch):
        self.counter += 1
        return {"some_value": batch["next", "reward"].sum(), "log_pbar": False}


@pytest.mark.slow
def test_a_hook_written_as_the_guide_has_it_resumes(small, monkeypatch):
    def make():
        made = small.build(small.custom_parameters())
        build = made.build_trainer

        def build_trainer():
            trainer = build()
            LoggingHook().register(trainer, "logging_hook")
            return trainer

        made.build_trainer = build_trainer
        return made

    one = make()
    one.initial_state()
    assert one.run_iterations(0, 1)[0]["some_value"] == 8.0
    other = make()
    other.state = one.state
    assert other.torchrl_trainer._modules["logging_hook"].counter == 2
    assert isinstance(one.torchrl_trainer._modules["optimizer"], OptimizerHook)
    assert not isinstance(one.torchrl_trainer._modules["optimizer"], ReplayBufferTrainer)
