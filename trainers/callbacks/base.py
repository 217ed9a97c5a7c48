"""``Callback``: what an experiment has done at the moments of training, beside the training.

Knows no tensors, so that it serves trainers of networks and of chat models alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.errors import ParameterError
from ratchet.parameters.base import SubParameters
from trainers.staged import Metrics

if TYPE_CHECKING:
    from torch import Tensor

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.purposes import Purpose
    from ratchet.protocols.base import ProtocolHandler
    from trainers.base import Trainer
    from trainers.callbacks.registry import CallbackSpec

STAGES = (
    "sample_rollouts",
    "test_during_training",
    "create_fine_tune_jobs",
    "await_fine_tune_jobs",
    "test",
)
"""The stages whose begin and end are moments: of networks ``test``, of chat models all of them."""


@dataclass(frozen=True)
class Moment:
    """When a callback is called.

    ``iteration`` is, of a test, the number of those done before; ``stage`` is ``"train"``, or the
    stage that begins or ends; ``metrics`` are those known by now of the iteration or stage.
    """

    iteration: int
    stage: str
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class CallbackState:
    """What a callback remembers from one iteration to the next.

    ``values`` are JSON-compatible; ``tensors`` go by names without a slash, and those of chat
    models' trainers keep none.
    """

    values: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)


class Callback:
    """Base of callbacks. Subclasses write the moments they care for.

    In the order in which they come::

        begin_run                      before the first iteration
          begin_iteration              (none of these once a callback has stopped the run)
            after_rollouts             they are played
            after_loss                 its gradients are there, and no step is taken: of networks
          end_iteration                the iteration's metrics are there
        end_run                        after the last iteration, or the one that stopped the run
        begin_stage, end_stage         of the stages that :attr:`stages` names

    A moment that returns metrics adds them: to those of its iteration, or of its stage. Training
    is cut into stored stages, so that what is to outlast an iteration belongs to
    :meth:`take_state`. What is drawn from the global generators at a moment depends on neither
    training nor cuts, and changes neither; of networks, that is: with chat models there are
    none that may be drawn from.

    A callback is part of the keys of the stages that it changes. That is told by what it writes:
    a moment of iterations puts it into those of ``train`` (of chat models: ``log_stats``, so that
    a callback that only looks on has nothing played or trained again), and :attr:`stages` into
    those. One with an :meth:`end_run` makes the last iteration's key another than the same
    iteration's of a longer run, which then goes on from the last state before.
    """

    Parameters: ClassVar[type[SubParameters]] = SubParameters
    """What may stand beside its name in the experiment file."""

    stages: ClassVar[tuple[str, ...]] = ()
    """Of which stages (:data:`STAGES`) it is told begin and end."""

    steers: ClassVar[bool] = False
    """Whether it may stop the run, or put other weights in place, rather than look on."""

    plays_text: ClassVar[bool | None] = None
    """Whether it is for trainers of chat models (True), of networks (False), or of either."""

    stop_reason: str | None = None
    """Why it has asked to stop, if it has."""

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
        """Refuse an experiment in which the callback could not do what it is for.

        Asked before anything is built; ``spec`` says how the callback is given. Raises
        ParameterError with the reason.
        """

    @classmethod
    def reads(cls, parameters: SubParameters) -> frozenset[Purpose]:
        """Return what it reads the experiment's parameters for, beside what its stages do.

        Those parameters are in the keys of the stages that it takes part in.
        """
        return frozenset()

    # -- moments ---------------------------------------------------------------------------

    def begin_run(self, now: Moment) -> None:
        """Do what comes before the first iteration that the callback sees."""

    def begin_iteration(self, now: Moment) -> None:
        """Do what comes before an iteration.

        With chat models the rollouts are there by now: none are played again for a callback.
        """

    def after_rollouts(self, now: Moment, rollouts: Any) -> Metrics | None:  # noqa: ANN401
        """Look at an iteration's rollouts.

        A tensordict ``[E, T]`` that must not be changed; of chat models a ``NestedArrayDict``
        ``[N]``. Agents that are trained alone play none.
        """

    def after_loss(self, now: Moment, losses: Mapping[str, Tensor]) -> None:
        """Look at a minibatch's losses and metrics, and at the gradients in the parameters."""

    def end_iteration(self, now: Moment) -> Metrics | None:
        """Look at an iteration's metrics, with those of callbacks before this one."""

    def end_run(self, now: Moment) -> None:
        """Do what comes after all iterations; the state that follows is the one that is tested."""

    def begin_stage(self, now: Moment) -> None:
        """Do what comes before a stage."""

    def end_stage(self, now: Moment) -> Metrics | None:
        """Look at a stage's metrics. What it changes here is not kept in :meth:`take_state`."""

    # -- what it can do --------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """End the training with this iteration.

        The stages that were planned after it do nothing, and no metrics are written for them. The
        state says that it has stopped, and so it stays: a run that is asked for more iterations
        later has them pass in the same way. Change the callback's parameters, or leave it out in a
        fork, to go on. Raises ParameterError if :attr:`steers` is not set, on which keys depend.
        """
        if not self.steers:
            raise ParameterError(
                f"callback {type(self).__name__}: it asked to stop the run, but its class says"
                " `steers = False`, expected True."
            )
        self.stop_reason = reason

    def add_artifact(self, file: Path, name: str) -> None:
        """Keep a file with the run that does the work; nowhere if that has no id."""
        if self.trainer.settings.run_id is not None:
            self.trainer._add_file_to_artifact(name, "callback", file)

    # -- state -----------------------------------------------------------------------------

    def take_state(self) -> CallbackState:
        """Return what the next iteration depends on; nothing by default."""
        return CallbackState()

    def load_state(self, state: CallbackState) -> None:
        """Go on from what :meth:`take_state` returned; the callback is as new before."""
