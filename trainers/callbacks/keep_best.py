"""Keep the best weights instead of the last, for the test and the final state."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from ratchet.errors import ParameterError, nearest
from ratchet.parameters.base import SubParameters
from ratchet.parameters.purposes import Purpose
from trainers.callbacks.base import Callback, CallbackState, Moment
from trainers.callbacks.metrics import is_better, read_metric
from trainers.callbacks.registry import register_callback
from trainers.results import Metrics
from trainers.staged import StagedTrainer

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.base import ProtocolHandler
    from trainers.base import Trainer
    from trainers.callbacks.base import CallbackSpec
    from trainers.text.components import TextTrainerComponents


class KeepBestParameters(SubParameters):
    """Metric that selects the weights.

    Without ``dataset``, ``metric`` is one of an iteration's and rates the weights at the start of
    the iteration, which sampled its rollouts. With ``dataset``, the networks are tested on that
    dataset at the end of each iteration, ``metric`` is one of the test's, and its value is added
    to the iteration's as ``DATASET.METRIC``.
    """

    metric: str
    mode: Literal["max", "min"] = "max"
    dataset: str | None = None


@register_callback("keep_best")
class KeepBest(Callback):
    """Stores the weights with the best value of a metric, and restores them at the run's end."""

    Parameters = KeepBestParameters
    steers = True
    parameters: KeepBestParameters
    trainer: StagedTrainer | TextTrainerComponents

    best: float | None = None
    _weights: CallbackState | None = None
    _played: CallbackState | None = None

    @classmethod
    def check(
        cls,
        spec: CallbackSpec,
        hyper_params: HyperParameters,
        trainer: type[Trainer],
        handler: ProtocolHandler,
    ) -> None:
        """Refuse tests that would cost money, and metrics of weights from another iteration."""
        dataset = getattr(spec.parameters, "dataset", None)
        is_behind = trainer.traits.learns_tokens and hyper_params.language.mode == "one_step_behind"
        if dataset is None and is_behind:
            raise ParameterError(
                f"{spec.path}.dataset: got none with language.mode 'one_step_behind', where an"
                " iteration's rollouts are not sampled with its initial weights. Name a dataset,"
                " or choose the mode 'synchronous'."
            )
        if dataset is not None and trainer.traits.plays_text:
            raise ParameterError(
                f"{spec.path}.dataset: got {dataset!r}, but the agents are chat models, whose tests"
                " cost money. Leave it out and watch a metric of the iteration's rollouts."
            )

    @classmethod
    def reads(cls, parameters: SubParameters) -> frozenset[Purpose]:
        """Return the purpose of tests if it tests networks."""
        tests = getattr(parameters, "dataset", None) is not None
        return frozenset({Purpose.TESTS} if tests else ())

    def begin_iteration(self, now: Moment) -> None:
        """Copy the weights that sample the rollouts."""
        if self.parameters.dataset is None:
            self._played = self.trainer.take_weights()

    def end_iteration(self, now: Moment) -> Metrics | None:
        """Store the weights if their value is the best so far."""
        parameters, added = self.parameters, None
        if parameters.dataset is None:
            value = read_metric(now, parameters.metric, seen=self.best is not None)
        else:
            value = self._tested(parameters.dataset)
            added = {f"{parameters.dataset}.{parameters.metric}": value}
        if value is None or math.isnan(value):
            return added
        if self.best is None or is_better(value, self.best, parameters.mode):
            self.best = value
            self._weights = self._played or self.trainer.take_weights()
        return added

    def _tested(self, dataset: str) -> float:
        assert isinstance(self.trainer, StagedTrainer)  # as check() ensures
        metrics = self.trainer.evaluate(dataset).metrics
        if self.parameters.metric not in metrics:
            raise ParameterError(
                f"keep_best: the test on {dataset!r} has no metric {self.parameters.metric!r}."
                f"{nearest(self.parameters.metric, list(metrics))}"
            )
        return metrics[self.parameters.metric]

    def end_run(self, now: Moment) -> None:
        """Replace the last weights by the best."""
        if self._weights is not None:
            self.trainer.put_weights(self._weights)

    def take_state(self) -> CallbackState:
        """Return the best value and its weights."""
        weights = self._weights or CallbackState()
        return CallbackState({"best": self.best, "weights": weights.values}, weights.tensors)

    def load_state(self, state: CallbackState) -> None:
        """Restore the best value and its weights."""
        self.best = state.values["best"]
        if self.best is not None:
            self._weights = CallbackState(state.values["weights"], state.tensors)
