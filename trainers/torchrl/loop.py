"""The loop of a TorchRL trainer, one collected batch at a time, with its hooks in order.

It calls the trainer's own hook methods and steppers, so that hooks and subclasses behave as in
``Trainer.train``. Differences: losses are averaged over all epochs, and batches are prepared
(advantages, the buffer's extension) once and not in each epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.trainers import Trainer
from torchrl.trainers.trainers import ValueEstimatorHook

from trainers.torchrl.snapshots import is_replay, operations, registered

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
        for place, (operation, arguments) in enumerate(operations(trainer, "pre_epoch")):
            if _is_extension(operation):
                self._extensions.append(operation)
            if _is_preparation(operation) and not refresh_each_epoch:
                operations(trainer, "pre_epoch")[place] = (_OncePerBatch(operation), arguments)

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
        for _ in _steps(trainer.optim_steps_per_batch):
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


def _steps(number: int | None) -> Iterable[int]:
    return itertools.count() if number is None else range(number)


def _is_extension(operation: Callable[..., Any]) -> bool:
    method = registered(operation)
    owner = getattr(method, "__self__", None)
    return is_replay(owner) and method.__name__ == "extend"


def _is_preparation(operation: Callable[..., Any]) -> bool:
    return _is_extension(operation) or isinstance(registered(operation), ValueEstimatorHook)
