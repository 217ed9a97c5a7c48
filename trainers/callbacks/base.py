"""``Callback``: base class of additional actions at defined moments of training.

Imports no tensor library, so that it serves trainers of networks and of chat models alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.errors import ParameterError
from ratchet.parameters.base import SubParameters
from ratchet.parameters.key_inputs import parameters_read
from trainers.results import Metrics

if TYPE_CHECKING:
    from torch import Tensor

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.purposes import Purpose
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.rollouts.nested_array_dict import NestedArrayDict
    from trainers.base import Trainer

STAGES = (
    "sample_rollouts",
    "test_during_training",
    "create_fine_tune_jobs",
    "await_fine_tune_jobs",
    "test",
)
"""Stages whose start and end are moments: ``test`` for networks, all of them for chat models."""
ITERATION_STAGES = ("train", "log_stats", "run_trainer")
"""Stages that run iterations: for networks, chat models, and trainers that run as one stage.

The end of the run may act on their last iteration.
"""
_OF_ITERATIONS = (
    "begin_run",
    "begin_iteration",
    "after_rollouts",
    "after_loss",
    "end_iteration",
    "end_run",
)


@dataclass(frozen=True)
class Moment:
    """Time at which a callback is called.

    ``iteration`` of a test is the number of finished iterations; ``stage`` is ``"train"``, or the
    stage that starts or ends; ``metrics`` are those of the iteration or stage so far. ``dataset``
    is that of a test of networks, else empty. ``rollouts`` are those of a test of chat models at
    its end, a ``NestedArrayDict`` ``[N]``, else None.
    """

    iteration: int
    stage: str
    metrics: Mapping[str, float]
    dataset: str = ""
    rollouts: NestedArrayDict | None = None


@dataclass(frozen=True)
class CallbackState:
    """State of a callback between iterations.

    ``values`` are JSON-compatible; ``tensors`` have names without a slash and must be empty for
    trainers of chat models.
    """

    values: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)


class Callback:
    """Base of callbacks. Subclasses implement the moments they need.

    In order of execution::

        begin_run                      before the first iteration
          begin_iteration              (once a callback has stopped the run, none of these)
            after_rollouts             rollouts are collected
            after_loss                 gradients are computed, before the step; networks only
          end_iteration                the iteration's metrics are available
        end_run                        after the last iteration, or the one that stopped the run
        begin_stage, end_stage         of the stages in :attr:`stages`

    Metrics that a moment returns are added to those of its iteration or stage. Training is split
    into stored stages: values needed in later iterations belong to :meth:`take_state`. For
    networks, the global random generators are seeded for each moment and restored after it, so
    that sampling at a moment neither affects training nor depends on it or on the split; with
    chat models, do not use global generators.

    A callback is part of the keys of the stages that it changes, which depend on the methods it
    overrides: a moment of iterations adds it to the key of ``train`` (chat models:
    ``log_stats``, so that a callback that only observes recomputes no rollouts or training), and
    :attr:`stages` to the keys of those. With :meth:`end_run`, the last iteration has a different
    key from the same iteration of a longer run, which then continues from the state before it.
    """

    Parameters: ClassVar[type[SubParameters]] = SubParameters
    """Model of the parameters next to its name in the experiment file."""

    stages: ClassVar[tuple[str, ...]] = ()
    """The stages (:data:`STAGES`) whose start and end it observes."""

    steers: ClassVar[bool] = False
    """Whether it may stop the run or replace weights, rather than only observe."""

    spans_phases: ClassVar[bool] = False
    """Whether its state continues in the next phase of a run; otherwise it starts over."""

    plays_text: ClassVar[bool | None] = None
    """Supported trainers: of chat models only (True), of networks only (False), or both (None)."""

    stop_reason: str | None = None
    """The reason for which it requested a stop, if any."""

    def __init__(self, parameters: SubParameters, trainer: Trainer) -> None:
        self.parameters = parameters
        self.trainer = trainer

    @classmethod
    def check(
        cls,
        spec: CallbackSpec,
        hyper_params: HyperParameters,
        trainer: type[Trainer],
        handler: ProtocolHandler,
    ) -> None:
        """Refuse an experiment in which the callback could not work.

        Called before any component is built; ``spec`` is the callback's entry in the experiment.
        Raises ParameterError with the reason.
        """

    @classmethod
    def reads(cls, parameters: SubParameters) -> frozenset[Purpose]:
        """Return the purposes of parameters it reads in addition to those its stages read.

        Those parameters are in the keys of its stages.
        """
        return frozenset()

    # -- moments ---------------------------------------------------------------------------

    def begin_run(self, now: Moment) -> None:
        """Run before the first iteration that the callback observes."""

    def begin_iteration(self, now: Moment) -> None:
        """Run before an iteration.

        For chat models the rollouts already exist: none are sampled again for a callback.
        """

    def after_rollouts(self, now: Moment, rollouts: Any) -> Metrics | None:  # noqa: ANN401
        """Inspect an iteration's rollouts.

        For networks a tensordict ``[E, T]``, which must not be changed; for chat models a
        ``NestedArrayDict`` ``[N]``. Solo agents have no rollouts.
        """

    def after_loss(self, now: Moment, losses: Mapping[str, Tensor]) -> None:
        """Inspect a minibatch's losses and metrics, and the gradients in the parameters."""

    def end_iteration(self, now: Moment) -> Metrics | None:
        """Inspect an iteration's metrics, including those of callbacks before this one."""

    def end_run(self, now: Moment) -> None:
        """Run after all iterations; the resulting state is the one that is tested."""

    def begin_stage(self, now: Moment) -> None:
        """Run before a stage."""

    def end_stage(self, now: Moment) -> Metrics | None:
        """Inspect a stage's metrics. Changes here are not stored by :meth:`take_state`."""

    # -- actions --------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """End the training with this iteration.

        The remaining planned stages do nothing and write no metrics. The stop is part of the state
        and permanent: if more iterations are requested later, they are skipped too. To continue,
        change the callback's parameters, or leave it out in a fork. Raises ParameterError if
        :attr:`steers`, which keys depend on, is not set.
        """
        if not self.steers:
            raise ParameterError(
                f"callback {type(self).__name__}: it requested a stop, but its class sets"
                " `steers = False`, expected True."
            )
        self.stop_reason = reason

    def add_artifact(self, file: Path, name: str) -> None:
        """Store a file with the current run; ignored if that has no id."""
        if self.trainer.settings.run_id is not None:
            self.trainer._add_file_to_artifact(name, "callback", file)

    # -- state -----------------------------------------------------------------------------

    def take_state(self) -> CallbackState:
        """Return the state that the next iteration depends on; empty by default."""
        return CallbackState()

    def load_state(self, state: CallbackState) -> None:
        """Restore the result of :meth:`take_state` in a new callback."""


@dataclass(frozen=True)
class CallbackSpec:
    """A callback of an experiment's configuration.

    ``label`` is unique in the experiment; ``path`` is the dotted path of its parameters,
    ``prefix`` the prefix of messages about it.
    """

    kind: type[Callback]
    parameters: SubParameters
    label: str
    path: str
    prefix: str

    def writes(self, moment: str) -> bool:
        """Return whether its class implements a moment."""
        return getattr(self.kind, moment) is not getattr(Callback, moment)

    def takes_part(self, stage: str) -> bool:
        """Return whether it is part of a stage's key."""
        in_iterations = any(self.writes(moment) for moment in _OF_ITERATIONS)
        return stage in self.kind.stages or (stage in ITERATION_STAGES and in_iterations)

    @property
    def may_change_tests(self) -> bool:
        """Whether the test after training may differ from one of its last iteration."""
        only_last = "test" in self.kind.stages and "test_during_training" not in self.kind.stages
        return self.kind.steers or only_last

    def key_parameters(
        self, hyper_params: HyperParameters, stage: str, *, last: bool
    ) -> dict[str, Any]:
        """Return its content for the key of one of its stages.

        ``last``: whether the run ends with the stage's last iteration.
        """
        key: dict[str, Any] = {"name": self.label, **self.parameters.to_dict()}
        purposes = self.kind.reads(self.parameters)
        if purposes:
            key["reads"] = parameters_read(hyper_params, purposes, {hyper_params.trainer_name})
        if last and stage in ITERATION_STAGES and self.writes("end_run"):
            key["ends_run"] = True
        return key
