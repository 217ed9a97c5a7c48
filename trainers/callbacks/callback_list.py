"""``CallbackList``: calls a trainer's callbacks at the moments of training; stores their states.

Called by the base classes of trainers only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ratchet.errors import ParameterError
from ratchet.seeding import derive_seed, seeded_globals
from trainers.callbacks.base import CallbackSpec, CallbackState, Moment
from trainers.callbacks.registry import callback_specs
from trainers.results import Metrics

if TYPE_CHECKING:
    from torch import Tensor

    from ratchet.rollouts.nested_array_dict import NestedArrayDict
    from trainers.base import Trainer

STAGE = "train"
_STATES = "states"
_STOPPED = "stopped"

logger = logging.getLogger(__name__)


class CallbackList:
    """The callbacks of one trainer, in the order of the experiment's configuration."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._specs = callback_specs(trainer.hyper_params, trainer.settings.base_dir)
        self._reset()

    def _reset(self) -> None:
        self._all = {spec.label: spec.kind(spec.parameters, self._trainer) for spec in self._specs}
        self._begun: set[str] = set()
        self._stopped: dict[str, Any] | None = None
        self._iteration = self._count = 0
        self._metrics: Metrics = {}
        self.tested_rollouts: NestedArrayDict | None = None

    def __bool__(self) -> bool:
        return bool(self._specs)

    @property
    def may_change_tests(self) -> bool:
        """Whether the test after training may differ from one in its last iteration."""
        return any(spec.may_change_tests for spec in self._specs)

    @property
    def has_stopped(self) -> bool:
        """Whether a callback has ended the training."""
        return self._stopped is not None

    # -- moments ---------------------------------------------------------------------------

    def iterate(self, iteration: int, work: Callable[[], Metrics], *, last: bool) -> Metrics | None:
        """Run an iteration with the moments around it; None if the run was stopped earlier.

        ``work`` calls the moments inside the iteration and returns its metrics, to which callbacks
        add theirs; ``last``: whether the run ends with it.
        """
        if not self:
            return work()
        if self.has_stopped:
            return None
        self._iteration, self._count, self._metrics = iteration, 0, {}
        for spec in self._specs:
            if spec.label not in self._begun:
                self._call(spec, "begin_run")
                self._begun.add(spec.label)
        self._call_all("begin_iteration")
        self._add(work(), "the trainer")
        self._call_all("end_iteration")
        if last or self.has_stopped:
            self._call_all("end_run")
        return self._metrics

    def after_rollouts(self, rollouts: object) -> None:
        """Pass the rollouts of the current iteration to all callbacks."""
        self._call_all("after_rollouts", rollouts)

    def after_loss(self, losses: Mapping[str, Tensor]) -> None:
        """Report that a minibatch's gradients are computed."""
        self._call_all("after_loss", losses)

    @contextmanager
    def stage(self, name: str, iteration: int, dataset: str = "") -> Iterator[Metrics]:
        """Run a stage with the moments around it.

        Yields the stage's metrics, to be filled by the caller; callbacks add theirs at the end.
        A caller may set :attr:`tested_rollouts` for them.
        """
        taking_part = [spec for spec in self._specs if name in spec.kind.stages]
        self._count, self.tested_rollouts = 0, None
        metrics: Metrics = {}
        for spec in taking_part:
            self._call(spec, "begin_stage", moment=Moment(iteration, name, metrics, dataset))
        yield metrics
        for spec in taking_part:
            now = Moment(iteration, name, dict(metrics), dataset, self.tested_rollouts)
            _merge(metrics, self._call(spec, "end_stage", moment=now), spec.prefix)

    def _call_all(self, name: str, *args: object) -> None:
        for spec in self._specs:
            self._add(self._call(spec, name, *args), spec.prefix)

    def _call(
        self, spec: CallbackSpec, name: str, *args: object, moment: Moment | None = None
    ) -> Metrics | None:
        """Call one moment of a callback; return the metrics that it adds."""
        if not spec.writes(name):
            return None
        now = moment or Moment(self._iteration, STAGE, dict(self._metrics))
        callback = self._all[spec.label]
        self._count += 1
        with self._isolate(spec, name, now):
            added: Metrics | None = getattr(callback, name)(now, *args)
        if callback.stop_reason is not None and self._stopped is None:
            self._stop(spec, callback.stop_reason, now)
        return added

    def _isolate(self, spec: CallbackSpec, name: str, now: Moment) -> AbstractContextManager[None]:
        """Separate the random numbers of callbacks from those of training.

        Stages of chat models run concurrently and use no global generator.
        """
        if self._trainer.traits.plays_text:
            return nullcontext()
        purpose = f"{now.stage}.{name}.{self._count}"
        seed = self._trainer.hyper_params.seed
        return seeded_globals(derive_seed(seed, "callback", now.iteration, purpose, spec.label))

    def _stop(self, spec: CallbackSpec, reason: str, now: Moment) -> None:
        if now.stage != STAGE:
            raise ParameterError(
                f"{spec.prefix}: it requested a stop in the stage {now.stage!r}, expected a"
                " moment of an iteration."
            )
        self._stopped = {"iteration": now.iteration, "callback": spec.label, "reason": reason}
        logger.warning(
            "training ends with iteration %d: callback %s: %s", now.iteration, spec.label, reason
        )

    def _add(self, metrics: Metrics | None, origin: str) -> None:
        _merge(self._metrics, metrics, origin)

    # -- state -----------------------------------------------------------------------------

    def take_values(self) -> dict[str, Any]:
        """Return the plain part of their states; empty before the first iteration."""
        if not self._begun:
            return {}
        states = {label: state.values for label, state in self._states().items()}
        stopped = {} if self._stopped is None else {_STOPPED: dict(self._stopped)}
        return {_STATES: states, **stopped}

    def take_tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors of their states: callback → name → tensor."""
        tensors_by_callback = {label: state.tensors for label, state in self._states().items()}
        return {label: tensors for label, tensors in tensors_by_callback.items() if tensors}

    def load(
        self,
        values: Mapping[str, Any],
        tensors: Mapping[str, Mapping[str, Tensor]] | None = None,
    ) -> None:
        """Restore states; a callback without a stored state starts over."""
        self._reset()
        states = values.get(_STATES, {})
        for label, callback in self._all.items():
            if label in states:
                callback_tensors = dict((tensors or {}).get(label, {}))
                callback.load_state(CallbackState(dict(states[label]), callback_tensors))
                self._begun.add(label)
        stopped = values.get(_STOPPED)
        if stopped is not None and stopped["callback"] in self._begun:
            self._stopped = dict(stopped)

    def load_spanning(
        self, values: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        """Restore the states, of an earlier phase, of callbacks that span phases."""
        spanning = {spec.label for spec in self._specs if spec.kind.spans_phases}
        states = values.get(_STATES, {})
        self.load({_STATES: {name: states[name] for name in states if name in spanning}}, tensors)

    def _states(self) -> dict[str, CallbackState]:
        return {
            label: callback.take_state()
            for label, callback in self._all.items()
            if label in self._begun
        }


def _merge(metrics: Metrics, added: Metrics | None, origin: str) -> None:
    """Add metrics to others; ParameterError if a name already exists."""
    for name, value in (added or {}).items():
        if name in metrics:
            raise ParameterError(
                f"{origin}: it adds the metric {name!r}, which the trainer or an earlier callback"
                " already records. Rename one of the two."
            )
        metrics[name] = value
