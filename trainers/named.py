"""Classes that an experiment can name as its trainer: their base, their traits and the registry."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from ratchet.plugins import is_framework
from ratchet.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.tracking.stage_kinds import StageKind

_FORMER_NAMES = {
    "needed_packages": "required_packages",
    "says_what_it_samples": "declares_sample_count",
}


class DeclaredStage(Protocol):
    """A stage of a plug-in: its kind, and the function that computes it."""

    @property
    def kind(self) -> StageKind:
        """Its declaration for runs and reports."""

    @property
    def work(self) -> Callable[..., object]:
        """The function."""


@dataclass(frozen=True)
class TrainerTraits:
    """Features that a trainer class supports, declared in its attribute ``traits``.

    A subclass changes some of them: ``traits = replace(TensorDictRlTrainer.traits, …)``.

    Attributes
    ----------
    plays_text
        Whether its agents must be chat models (True) or must not be (False); None: either.
    learns_tokens
        Whether its agents are language models trained on tokens.
    is_remote
        Whether a service hosts its language model: rollouts are then separate stages, because
        sampling them again would cost money.
    acts_alone
        Whether it builds its own agent, which acts in an environment without other agents.
    loads_agents
        Whether its agents can start from the weights of an earlier run.
    takes_sequences
        Whether its loss supports rows of steps ``[e, T]``, which recurrent agents require.
    samples_rollouts
        Whether it collects an iteration's rollouts without learning from them.
    samples_tests
        Whether it can test agents with sampled actions.
    supports_imitation
        Whether agents can learn from demonstrations before they are trained.
    supports_phases
        Whether an experiment may have ``phases``, if the trainer runs in stages.
    further_stages
        Custom stages between training and tests, in order: functions with the decorator
        :func:`tasks.stages.decorator.stage_of`.
    instead_of_callbacks
        None if its training calls callbacks; otherwise the message for experiments with some.
    """

    plays_text: bool | None = None
    learns_tokens: bool = False
    is_remote: bool = False
    acts_alone: bool = False
    loads_agents: bool = False
    takes_sequences: bool = False
    samples_rollouts: bool = False
    samples_tests: bool = False
    supports_imitation: bool = False
    supports_phases: bool = False
    further_stages: tuple[DeclaredStage, ...] = ()
    instead_of_callbacks: str | None = (
        "calls none. Leave callbacks out, or derive the trainer from TensorDictRlTrainer or"
        " PureTextRlTrainer, whose loops call them."
    )


class NamedTrainer:
    """Base of trainers, and of the classes that a trainer is built around.

    Attributes that code outside Ratchet assigns to ``self`` are recorded; see
    :mod:`trainers.custom_state`.
    """

    traits: ClassVar[TrainerTraits] = TrainerTraits()
    """What the class supports."""

    transient_attributes: ClassVar[Collection[str]] = ()
    """Attributes that states leave out, such as connections and caches that can be rebuilt."""

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401
        """Let methods with former names override the renamed ones, and attributes set traits."""
        super().__init_subclass__(**kwargs)
        namespace = vars(cls)
        for former, name in _FORMER_NAMES.items():
            if former in namespace and name not in namespace:
                _warn(f"{cls.__name__}.{former} is deprecated: use {name}.")
                setattr(cls, name, namespace[former])
        for name in _TRAITS & namespace.keys():
            traits = f"traits = dataclasses.replace({cls.__mro__[1].__name__}.traits, {name}=…)"
            _warn(f"{cls.__name__}.{name} is deprecated: use {traits}.")
            value = getattr(cls, name)  # some were methods
            changes = {name: value() if callable(value) else value}
            cls.traits = replace(cls.traits, **changes)

    def __setattr__(self, name: str, value: object) -> None:
        caller = sys._getframe(1)  # assignments by code outside the class are not stored
        is_custom_code = not is_framework(caller.f_globals.get("__name__", ""))
        if is_custom_code and caller.f_locals.get("self") is self:
            self.__dict__.setdefault("_assigned", {})[name] = None
        super().__setattr__(name, value)

    @classmethod
    def required_packages(cls, hyper_params: HyperParameters) -> Sequence[str]:
        """Return the optional packages that this trainer requires; none by default."""
        return ()

    @classmethod
    def check_build(cls, hyper_params: HyperParameters, base_dir: Path | None = None) -> None:
        """Raise RatchetError if the trainer cannot be built, where this takes only seconds.

        Called by plans and before runs. The default checks nothing.
        """

    @classmethod
    def find_cautions(cls, hyper_params: HyperParameters, base_dir: Path | None) -> Iterable[str]:
        """Return warnings about parameters that are rarely intended; none by default."""
        return ()


_TRAITS = {field.name for field in fields(TrainerTraits)}
_TrainerClass = TypeVar("_TrainerClass", bound=type[NamedTrainer])

TRAINERS: Registry[NamedTrainer] = Registry("trainer", "trainers.named:NamedTrainer", "trainers")


def register_trainer(name: str) -> Callable[[_TrainerClass], _TrainerClass]:
    """Register a trainer under a name, which experiments use as ``trainer``.

    Raises ParameterError if another class has the name.
    """
    return TRAINERS.register(name)


def _warn(message: str) -> None:
    warnings.warn(message, DeprecationWarning, stacklevel=3)
