"""Hooks for any trainer of the library: scheduled evaluation, early stopping, the best policy.

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
    """Plays episodes without exploring, every so many batches; logs their mean return.

    Parameters
    ----------
    make_environment
        Makes the environment, when first needed.
    seeds
        One for each episode; the same each time, so that evaluations compare.
    period
        How many batches lie between two evaluations.
    prepare
        Called with the environment before it is played, e.g. to copy running means.
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
        """Evaluate if it is time."""
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
        """Go on counting."""
        self._count = state_dict["count"]

    def register(self, trainer: Trainer, name: str = "evaluation") -> None:
        """Evaluate after each batch's steps."""
        trainer.register_op("post_steps_log", self)
        trainer.register_module(name, self)


class StopAt(TrainerHookBase):  # type: ignore[misc] # the library has no types
    """Ends training when a metric reaches a value; register it after what logs the metric."""

    def __init__(self, value: float, monitor: str = RETURN) -> None:
        self.value, self.monitor = value, monitor
        self._trainer: Trainer | None = None

    def __call__(self, batch: TensorDictBase) -> None:
        """Ask the trainer to stop if the last value is good enough."""
        latest = last_value(self._trainer, self.monitor)
        if self._trainer is not None and latest is not None and latest >= self.value:
            self._trainer.request_stop(f"{self.monitor} is {latest:g}, at least {self.value:g}")

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the trainer knows whether it has stopped."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take nothing."""

    def register(self, trainer: Trainer, name: str = "stop_at") -> None:
        """Look at the metric after each batch's steps."""
        self._trainer = trainer
        trainer.register_op("post_steps_log", self)
        trainer.register_module(name, self)


class KeepBest(TrainerHookBase):  # type: ignore[misc] # the library has no types
    """Keeps the weights with which a metric was best; register it after what logs the metric."""

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
        """Copy the weights if they are better than all before."""
        latest = last_value(self._trainer, self.monitor)
        if latest is None or (self.best is not None and not self._is_better(latest, self.best)):
            return
        self.best = latest
        self.weights = {k: v.detach().clone() for k, v in self.policy.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and the weights that had it."""
        return {"best": self.best, "weights": self.weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self.best, self.weights = state_dict["best"], state_dict["weights"]

    def register(self, trainer: Trainer, name: str = "keep_best") -> None:
        """Look at the metric after each batch's steps."""
        self._trainer = trainer
        trainer.register_op("post_steps_log", self)
        trainer.register_module(name, self)

    def _is_better(self, value: float, best: float) -> bool:
        return value > best if self.mode == "max" else value < best


def last_value(trainer: Trainer | None, monitor: str) -> float | None:
    """Return the last value of a metric, None before there is one."""
    values = trainer._log_dict.get(monitor) if trainer is not None else None
    return float(values[-1]) if values else None
