"""Preparation of TorchRL trainers: fix what Ratchet needs, warn about what is replaced.

Counters are stored on the instance (the library keeps them on the class), the tracker and the stage
store replace logger and checkpoints, and the collector starts with the trained weights.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakSet

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl import logger as torchrl_logger
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.envs import EnvBase, SerialEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.trainers import ReplayBufferTrainer, Trainer, UpdateWeights
from torchrl.trainers.algorithms.offline_to_online import OfflineToOnlineReplayBufferHook
from torchrl.trainers.trainers import ValueEstimatorHook
from torchrl.weight_update import WeightSyncScheme

from ratchet.errors import ParameterError
from trainers.torchrl.replay import check_buffer
from trainers.torchrl.snapshots import hooks, is_replay, operations, registered, replay_buffers

if TYPE_CHECKING:
    from torchrl.envs.utils import ExplorationType


Batch: TypeAlias = TensorDictBase


class HookLoop:
    """Runs a TorchRL trainer batch by batch.

    Parameters
    ----------
    trainer
        The TorchRL trainer, which must learn in this process.
    refresh_each_epoch
        Whether to prepare the batch again in each epoch, as the library does.
    exploration
        Type of policies' actions inside the losses; None: the library's default.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        refresh_each_epoch: bool = False,
        exploration: ExplorationType | None = None,
    ) -> None:
        self.trainer = trainer
        self.exploration = exploration
        self._extensions: list[Callable[[Batch], Batch]] = []
        for index, (operation, arguments) in enumerate(operations(trainer, "pre_epoch")):
            is_extension = _is_extension(operation)
            if is_extension:
                self._extensions.append(operation)
            is_preparation = is_extension or isinstance(registered(operation), ValueEstimatorHook)
            if is_preparation and not refresh_each_epoch:
                operations(trainer, "pre_epoch")[index] = (_OncePerBatch(operation), arguments)

    def run_batch(self, batch: Batch) -> None:
        """Process one collected batch like the library."""
        trainer = self.trainer
        batch = trainer._process_batch_hook(batch)
        trainer.collected_frames += count_frames(batch, trainer.frame_skip)
        trainer._pre_steps_log_hook(batch)
        if trainer.collected_frames >= trainer.collector.init_random_frames:
            with set_exploration_type(self.exploration):
                self._optimise(batch)
        else:
            for extend in self._extensions:  # random frames are learned from later
                extend(batch)
        trainer._post_steps_hook()
        trainer._post_steps_log_hook(batch)

    def _optimise(self, batch: Batch) -> None:
        trainer = self.trainer
        if type(trainer).optim_steps is not Trainer.optim_steps:
            trainer.optim_steps(batch)
            return
        losses = _Mean()
        trainer._pre_optim_hook()
        for _ in range(trainer.num_epochs):
            trainer._pre_epoch_log_hook(batch)
            processed = trainer._pre_epoch_hook(batch)
            self._run_epoch(processed, losses)
            trainer._post_epoch_log_hook(batch)
            trainer._post_epoch_hook()
        if losses.count:
            trainer._post_optim_complete_log_hook(trainer._optim_count, losses.mean())

    def _run_epoch(self, batch: Batch, losses: _Mean) -> None:
        trainer = self.trainer
        number = trainer.optim_steps_per_batch
        for _ in itertools.count() if number is None else range(number):
            try:
                sub_batch = trainer._process_optim_batch_hook(batch)
            except StopIteration:  # the sampler has finished the buffer
                return
            if sub_batch is None:
                return
            trainer._optim_count += 1
            losses.add(self._take_step(sub_batch))
            trainer._post_optim_hook()
            trainer._post_optim_log(sub_batch)

    def _take_step(self, sub_batch: Batch) -> Batch:
        trainer = self.trainer
        if trainer.optimization_stepper is not None:
            losses: Batch = trainer.optimization_stepper.step(trainer, sub_batch)
            return losses.detach()
        losses = trainer.loss_module(sub_batch)
        trainer._post_loss_hook(sub_batch)
        losses = trainer._process_loss_hook(sub_batch, losses)
        detached: Batch = trainer._optimizer_hook(losses)
        return detached


def count_frames(batch: Batch, frame_skip: int) -> int:
    """Count the environment's frames in a collected batch, without padding."""
    mask = batch.get(("collector", "mask"), None)
    return int(batch.numel() if mask is None else mask.sum()) * frame_skip


class _OncePerBatch:
    """Calls an operation once for each new batch, and caches the result until the next."""

    def __init__(self, operation: Callable[..., Any]) -> None:
        self.__wrapped__ = registered(operation)
        self._operation = operation
        self._batch: Batch | None = None
        self._result: Any = None

    def __call__(self, batch: Batch, **arguments: Any) -> Any:  # noqa: ANN401
        if self._batch is None or batch is not self._batch:
            self._result = self._operation(batch, **arguments)
            self._batch = batch
        return self._result


class _Mean:
    """Sums losses of any steps and returns their means."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, losses: Batch) -> None:
        """Add the losses and metrics of one step."""
        self.count += 1
        for name, value in losses.items():
            value = value.detach().clone()
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] = self._counts.get(name, 0) + 1

    def mean(self) -> TensorDict:
        """Return each value's mean over the steps that have it."""
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        return TensorDict(means, batch_size=[])


def _is_extension(operation: Callable[..., Any]) -> bool:
    method = registered(operation)
    owner = getattr(method, "__self__", None)
    return is_replay(owner) and method.__name__ == "extend"


logger = logging.getLogger(__name__)


@dataclass
class Assembly:
    """A TorchRL trainer, its loop, and the batches of its collector."""

    trainer: Trainer
    loop: HookLoop
    batches: Iterator[TensorDictBase]

    def close(self) -> None:
        """Release environments and workers."""
        self.trainer.collector.shutdown()


def assemble(
    trainer: Trainer, *, refresh_each_epoch: bool, exploration: ExplorationType | None
) -> Assembly:
    """Prepare a new trainer, call its ``setup`` hooks, and wrap it in a loop."""
    check_trainer(trainer)
    _check_simulators(getattr(trainer.collector, "env", None))
    _prepare(trainer)
    push_weights(trainer)
    trainer._setup_hook()
    loop = HookLoop(trainer, refresh_each_epoch=refresh_each_epoch, exploration=exploration)
    return Assembly(trainer, loop, iter(trainer.collector))


def quiet_library() -> None:
    """Set the library's log level to warnings: by default it logs the creation of each storage."""
    if "RL_LOGGING_LEVEL" not in os.environ:
        torchrl_logger.setLevel(logging.WARNING)


@contextmanager
def library_warnings_hidden() -> Iterator[None]:
    """Hide warnings of the library about its own code."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="torchrl")
        warnings.filterwarnings("ignore", category=FutureWarning, module="torchrl")
        warnings.filterwarnings("ignore", message=".*experimental/prototype.*")
        yield


@contextmanager
def seeded_resets(seed: int) -> Iterator[None]:
    """Seed each environment before its first reset within the context.

    Collectors reset environments on creation, before they can be seeded; running means of
    observations start with these values.
    """
    reset = EnvBase.reset
    seen: WeakSet[EnvBase] = WeakSet()

    def seeded(environment: EnvBase, *args: Any, **kwargs: Any) -> TensorDictBase:  # noqa: ANN401
        if environment not in seen:
            number = len(seen)
            # first, because seeding resets; wrapped environments are seeded with it
            seen.update(part for part in environment.modules() if isinstance(part, EnvBase))
            environment.set_seed((seed + number) % 2**31)
        return reset(environment, *args, **kwargs)

    EnvBase.reset = seeded
    try:
        yield
    finally:
        EnvBase.reset = reset


@atexit.register
def _shut_down_weight_updates() -> None:
    """Shut down the weight updates that failed or interrupted builds left.

    TorchRL 0.14.1 would shut them down when the interpreter, which can start no threads any more,
    collects them; and then wait for a thread forever.
    """
    for each in gc.get_objects():
        if issubclass(type(each), WeightSyncScheme):
            each.shutdown()


def place_samples(trainer: Trainer, device: str) -> None:
    """Have samples of replay buffers copied to a device; the frames may be in files."""
    for _, hook in hooks(trainer):
        if device != "cpu" and isinstance(hook, ReplayBufferTrainer):
            hook.device = device


def push_weights(trainer: Trainer) -> None:
    """Copy the trained weights to the collector, as its hook does after each batch."""
    for _, hook in hooks(trainer):
        if isinstance(hook, UpdateWeights):
            counter, hook.counter = hook.counter, hook.update_weights_interval - 1
            hook()
            hook.counter = counter


def has_workers(trainer: Trainer) -> bool:
    """Return whether other processes collect, whose simulators are not in the state."""
    return not isinstance(trainer.collector, Collector)


def has_copied_policy(trainer: Trainer) -> bool:
    """Return whether this process collects with a copy of the policy, on another device."""
    return getattr(trainer.collector, "get_weights_fn", None) is not None


def is_reproducible(trainer: Trainer) -> bool:
    """Return whether equal seeds yield equal batches, i.e. workers do not run ahead."""
    return isinstance(trainer.collector, Collector | MultiSyncCollector)


def enter_environments(trainer: Trainer, seed: int) -> None:
    """Seed and reset the environments, so that results do not depend on earlier episodes."""
    if is_reproducible(trainer):
        trainer.collector.set_seed(seed % 2**31)
        trainer.collector.reset()
    for index, (_, hook) in enumerate(hooks(trainer)):
        environment = getattr(hook, "environment", None)
        if environment is not None and hasattr(
            environment, "set_seed"
        ):  # e.g. of LogValidationReward
            environment.set_seed((seed + index + 1) % 2**31)


def check_trainer(trainer: object) -> None:
    """Refuse trainers whose iterations cannot be stages, or whose state cannot be stored."""
    if not isinstance(trainer, Trainer):
        raise ParameterError(
            f"build_trainer: got a {type(trainer).__name__}, expected a torchrl.trainers.Trainer."
        )
    if type(trainer).train is not Trainer.train:
        raise ParameterError(
            f"build_trainer: {type(trainer).__name__} overrides train(), which cannot be split"
            " into iterations; expected the library's loop with hooks. Implement it as hooks,"
            " or write a custom trainer with train()."
        )
    if trainer.async_collection:
        raise ParameterError(
            "trainer.async_collection: got true, but the buffer would be filled while stages are"
            " stored; expected false. For workers that run ahead choose `collector: multi_async`."
        )
    if trainer.learner_backend != "local":
        raise ParameterError(
            f"trainer.learner_backend: got {trainer.learner_backend!r}, expected 'local': a learner"
            " in another process has no state here. Collectors may run anywhere."
        )
    for buffer in replay_buffers(trainer).values():
        check_buffer(buffer)


def _check_simulators(environment: EnvBase | None) -> None:
    """Refuse several environments that share one simulator.

    The library creates these from ``batched_env_type: serial`` with a transformed environment.
    """
    if not isinstance(environment, SerialEnv):
        return
    simulators = [getattr(one, "base_env", one) for one in getattr(environment, "_envs", ())]
    if len({id(simulator) for simulator in simulators}) < len(simulators):
        raise ParameterError(
            f"training_env.num_workers: got {len(simulators)} environments that share one"
            " simulator and disturb each other; expected one, or `batched_env_type: parallel`."
        )


def _prepare(trainer: Trainer) -> None:
    """Set counters on the instance, and disable what the pipeline replaces."""
    trainer._last_log = {}
    trainer._last_save = trainer._optim_count = trainer.collected_frames = 0
    trainer.progress_bar = False
    _track_online_writes(trainer)
    _stop_prefetching(trainer)
    if trainer.logger is not None:
        logger.warning(
            "the trainer's logger %s is not used: metrics go to the run's folder and its tracker",
            type(trainer.logger).__name__,
        )
        trainer.logger = None
    if trainer.save_trainer_file is not None or trainer.checkpoint is not None:
        logger.warning("the trainer's own checkpoints are not used: stages store its state")
        trainer.save_trainer_file = trainer.checkpoint = trainer.checkpoint_rotation = None
    if hasattr(trainer.collector, "total_frames"):  # the number of iterations determines the end
        trainer.collector.total_frames = float("inf")
    if not is_reproducible(trainer):
        logger.warning(
            "the collector %s runs ahead of the learner: what is learned depends on timing, and a"
            " resumed run differs from an uninterrupted one",
            type(trainer.collector).__name__,
        )
    elif has_workers(trainer):
        _warn_of_states_in_workers(trainer.collector)


def _warn_of_states_in_workers(collector: MultiSyncCollector) -> None:
    """Warn about transforms whose state is in workers, e.g. running means."""
    states = collector.state_dict()["worker0"].get("env_state_dict") or {}
    if states:
        logger.warning(
            "the state of transforms in the collector's workers (%s) is neither stored nor used in"
            " tests: if it is learned, e.g. running means, a resumed run differs. Choose collector:"
            " sync",
            ", ".join(sorted(states)),
        )


def _stop_prefetching(trainer: Trainer) -> None:
    """Sample from buffers on demand: prefetched samples would miss the latest frames."""
    for buffer in replay_buffers(trainer, offline=True).values():
        if getattr(buffer, "_prefetch", False):
            logger.warning(
                "the replay buffer's prefetch is not used: samples would depend on timing, and a"
                " resumed run would differ"
            )
            buffer._prefetch = False


def _track_online_writes(trainer: Trainer) -> None:
    """Let the trainer count the frames written to a buffer of offline and online frames.

    The library queries the mixture for its write count, which it does not provide. Its keys are
    read now, since that samples, which would otherwise happen in the first batch after a resume.
    """
    for _, hook in hooks(trainer):
        if isinstance(hook, OfflineToOnlineReplayBufferHook):
            hook._aligned_keys()
            mixture = hook.replay_buffer
            trainer.replay_buffer = mixture.online_buffer
            trainer.replay_buffer._batch_size = hook.batch_size or mixture._batch_size
