"""Hooks for any TorchRL trainer: scheduled evaluation, early stopping, the best policy.

They register like the library's own, and their states resume with the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from torchrl.trainers import Trainer, TrainerHookBase

from ratchet.errors import ParameterError
from trainers.torchrl.evaluation_rollouts import play_episodes

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torch import nn
    from torchrl.envs import EnvBase

RETURN = "r_evaluation"
"""The metric that the library's ``EarlyStopping`` watches by default."""


class Evaluation(TrainerHookBase):  # type: ignore[misc] # the library has no types
    """Evaluates the policy without exploration every ``period`` batches; logs the mean return.

    Parameters
    ----------
    make_environment
        Creates the environment on first use.
    seeds
        One for each episode; the same each time, so that evaluations are comparable.
    period
        The number of batches between two evaluations.
    prepare
        Called with the environment before each evaluation, e.g. to copy running means.
    """

    def __init__(
        self,
        make_environment: Callable[[], EnvBase],
        policy: nn.Module,
        seeds: Sequence[int],
        *,
        period: int = 1,
        prepare: Callable[[EnvBase], None] | None = None,
    ) -> None:
        self.policy = policy
        self.seeds = list(seeds)
        self.period = period
        self._make_environment = make_environment
        self._prepare = prepare
        self._environment: EnvBase | None = None
        self._count = 0

    def __call__(self, batch: TensorDictBase) -> dict[str, Any] | None:
        """Evaluate if due."""
        self._count += 1
        if self._count % self.period:
            return None
        if self._environment is None:
            self._environment = self._make_environment()
        if self._prepare is not None:
            self._prepare(self._environment)
        episodes = play_episodes(self._environment, self.policy, self.seeds)
        returns = [episode.episode_return for episode in episodes]
        lengths = [float(episode.length) for episode in episodes]
        return {RETURN: fmean(returns), "evaluation_length": fmean(lengths), "log_pbar": True}

    def state_dict(self) -> dict[str, Any]:
        """Return the number of batches."""
        return {"count": self._count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the number of batches."""
        self._count = state_dict["count"]

    def register(self, trainer: Trainer, name: str = "evaluation") -> None:
        """Evaluate after each batch's steps."""
        trainer.register_op("post_steps_log", self)
        trainer.register_module(name, self)


class StopAt(TrainerHookBase):  # type: ignore[misc] # the library has no types
    """Ends training when a metric reaches a value; register it after the metric's hook."""

    def __init__(self, value: float, monitor: str = RETURN) -> None:
        self.value, self.monitor = value, monitor
        self._trainer: Trainer | None = None

    def __call__(self, batch: TensorDictBase) -> None:
        """Request a stop if the last value is sufficient."""
        latest = last_value(self._trainer, self.monitor)
        if self._trainer is not None and latest is not None and latest >= self.value:
            self._trainer.request_stop(f"{self.monitor} is {latest:g}, at least {self.value:g}")

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: the trainer records whether it has stopped."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing."""

    def register(self, trainer: Trainer, name: str = "stop_at") -> None:
        """Check the metric after each batch's steps."""
        self._trainer = trainer
        trainer.register_op("post_steps_log", self)
        trainer.register_module(name, self)


class KeepBest(TrainerHookBase):  # type: ignore[misc] # the library has no types
    """Stores the weights with the best value of a metric; register it after the metric's hook."""

    def __init__(
        self, policy: nn.Module, monitor: str = RETURN, mode: Literal["max", "min"] = "max"
    ) -> None:
        if mode not in ("max", "min"):
            raise ParameterError(f"KeepBest: mode is {mode!r}, expected 'max' or 'min'.")
        self.policy, self.monitor, self.mode = policy, monitor, mode
        self.best: float | None = None
        self.weights: dict[str, Any] | None = None
        self._trainer: Trainer | None = None

    def __call__(self, batch: TensorDictBase) -> None:
        """Copy the weights if they are the best so far."""
        latest = last_value(self._trainer, self.monitor)
        if latest is None:
            return
        best = self.best
        if best is not None and not (latest > best if self.mode == "max" else latest < best):
            return
        self.best = latest
        self.weights = {k: v.detach().clone() for k, v in self.policy.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and its weights."""
        return {"best": self.best, "weights": self.weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`."""
        self.best, self.weights = state_dict["best"], state_dict["weights"]

    def register(self, trainer: Trainer, name: str = "keep_best") -> None:
        """Check the metric after each batch's steps."""
        self._trainer = trainer
        trainer.register_op("post_steps_log", self)
        trainer.register_module(name, self)


def last_value(trainer: Trainer | None, monitor: str) -> float | None:
    """Return the last value of a metric; None before the first."""
    values = trainer._log_dict.get(monitor) if trainer is not None else None
    return float(values[-1]) if values else None
