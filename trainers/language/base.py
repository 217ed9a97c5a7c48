"""``BaseTrainer``: base class of trainers that learn from trajectories of tokens.

It has no access to tasks and stages; :mod:`trainers.language.trainer` is the loop around it.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from ratchet.errors import ParameterError
from ratchet.parameters.base import SECTIONS, SubParameters
from ratchet.parameters.language import LanguageParameters
from ratchet.parameters.reading.messages import describe_validation_error
from trainers.callbacks.base import CallbackState
from trainers.named import NamedTrainer, TrainerTraits

if TYPE_CHECKING:
    from ratchet.language_models.endpoints import ModelAddress
    from ratchet.language_models.engines.rollouts import RolloutEngine
    from ratchet.language_models.local.model import LanguageModel
    from ratchet.language_models.local.tokenizer import ChatTokenizer
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.rollouts.trajectory import Trajectory
    from ratchet.scenarios.language_task.parameters import LanguageAgentParameters

_HORIZON = ("total_train_steps", "num_iterations")
_NOT_CUSTOM = {"trainers", "ratchet", "abc", "builtins", "typing"}
_Section = TypeVar("_Section", bound=SubParameters)


@dataclass(frozen=True)
class TrainingPosition:
    """Position of training at the time of a step.

    Attributes
    ----------
    seed
        The experiment's seed.
    iteration
        The iteration, counted across phases.
    num_iterations
        The number of iterations, with those of earlier phases.
    start
        The iteration at which schedules start: 0, or the phase's first.
    """

    seed: int = 0
    iteration: int = 0
    num_iterations: int = 1
    start: int = 0

    @property
    def progress(self) -> tuple[int, int]:
        """The iterations that are done, and all, of the schedules."""
        return self.iteration - self.start, self.num_iterations - self.start


@dataclass(frozen=True)
class InitialModel:
    """Inputs from which a trainer creates its initial model.

    Attributes
    ----------
    build_model
        Creates or loads, in this process, the model that the agent's parameters name.
    agent
        The agent's parameters.
    settings
        The experiment's settings.
    intent
        Identifies the initial model: the same intent means the same model with the same data.
    only_plays
        Whether this process only samples: optimizer and reference models are not needed.
    """

    build_model: Callable[[], LanguageModel]
    agent: LanguageAgentParameters
    settings: ExperimentSettings
    intent: str
    only_plays: bool = False


class BaseTrainer(NamedTrainer, ABC):
    """Trains one model. Subclasses implement :meth:`train`.

    ``config`` contains the experiment file's parameters by name: the fields of the section
    ``language`` (``config.optimizer.lr``, ``config.train_service``,
    ``config.algorithm.get("mine", 0.5)``), the trainer's own section (``config.grpo``) and
    ``total_train_steps``. Missing fields have their defaults, so that a trainer can be created
    from a small config.

    Attributes that a subclass assigns to ``self`` are stored with the state, and restored when a
    run is resumed: numbers, texts, tensors and containers of these; modules, optimizers, random
    generators and other objects if ``__init__`` creates them. An attribute that cannot be stored
    raises an error that names it, unless it is listed in ``transient_attributes``.
    """

    traits = TrainerTraits(
        plays_text=False,
        learns_tokens=True,
        loads_agents=True,
        instead_of_callbacks=None,
        supports_phases=True,
    )
    section: ClassVar[str] = ""
    """The name of the trainer's section of parameters; empty for custom trainers."""

    def __init__(self, config: DictConfig | Mapping[str, Any]) -> None:
        self._config: DictConfig = OmegaConf.create(config)  # type: ignore[arg-type]
        for name in ("algorithm", "train_service"):
            if name not in self._config:
                self._config[name] = {}
        options = OmegaConf.to_container(self._config, resolve=True)
        assert isinstance(options, dict)
        fields = LanguageParameters.model_fields
        named = {str(name): value for name, value in options.items() if name in fields}
        self.language = _validated(LanguageParameters, named, "language")
        self.moment = TrainingPosition(num_iterations=int(options.get("total_train_steps", 1)))
        self._setup()

    def _setup(self) -> None:
        """Read further parameters from the config; for the bases of built-in trainers."""

    @classmethod
    def check_learner(
        cls, hyper_params: HyperParameters, agents: Mapping[str, LanguageAgentParameters]
    ) -> None:
        """Raise ParameterError for parameters that this trainer cannot use.

        By default for several processes, which only bases with custom steps support.
        ``agents`` are the parameters of the protocol's agents.
        """
        world_size = hyper_params.language.train_service.world_size
        if world_size > 1 and cls.needed_devices(hyper_params) == 1:
            raise ParameterError(
                f"language.train_service.world_size: got {world_size} with {cls.__name__}, whose"
                " train() runs in one process; expected 1. Derive the trainer from"
                " SelfHostedTrainer to train in several."
            )

    @classmethod
    def needed_devices(cls, hyper_params: HyperParameters) -> int:
        """Return the number of accelerators used for training, if training runs on accelerators."""
        return 1

    @classmethod
    def other_models(cls, hyper_params: HyperParameters) -> dict[str, str]:
        """Return further models that it reads, such as a teacher: purpose → folder or name."""
        return {}

    @classmethod
    def reads_horizon(cls, hyper_params: HyperParameters) -> bool:
        """Return whether training depends on the number of iterations.

        True with a schedule, and for custom trainers whose source names that number.
        """
        return hyper_params.language.optimizer.schedule != "constant" or _names_horizon(cls)

    @abstractmethod
    def train(self, trajectories: list[Trajectory]) -> dict[str, float]:
        """Train on an iteration's trajectories; return metrics."""

    @abstractmethod
    def begin(self, initial_model: InitialModel) -> None:
        """Set the initial model."""

    @property
    @abstractmethod
    def engine(self) -> RolloutEngine:
        """Samples completions with the current weights."""

    @property
    @abstractmethod
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer."""

    @property
    def max_resamples(self) -> int:
        """Maximal number of times an iteration samples further tasks to replace dropped groups."""
        return 0

    @property
    def redraws(self) -> Mapping[str, int]:
        """The number of times that each turn of an agent is sampled again, by agent."""
        return {}

    def keeps_group(self, group: Sequence[Trajectory]) -> bool:
        """Return whether the completions of a task are used for training; by default all are."""
        return True

    def take_state(self) -> dict[str, Any]:
        """Return the state that the next step depends on, as nested tensors and numbers.

        Subclasses add their own.
        """
        return {}

    def put_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`take_state`."""

    def take_weights(self) -> CallbackState:
        """Return a copy of the trained weights, or their name at a service."""
        return CallbackState()

    def put_weights(self, weights: CallbackState) -> None:
        """Restore the result of :meth:`take_weights`."""

    def save_model(self, folder: Path) -> None:
        """Write the current model in Hugging Face's layout, if it is local."""

    def save_whole_model(self, folder: Path) -> None:
        """Write the current model with all its weights: an adapter is merged into them."""
        self.save_model(folder)

    def address(self) -> ModelAddress | None:
        """Return the address of the current model; None if it is local."""
        return None

    def close(self) -> None:
        """Release connections; the trainer is not used afterwards."""

    def _parameters(
        self, model: type[_Section], name: str, *, leave_out: Collection[str] = ()
    ) -> _Section:
        """Read a section of the config; missing fields have their defaults."""
        section = OmegaConf.to_container(self._config.get(name, OmegaConf.create({})), resolve=True)
        assert isinstance(section, dict)
        named = {key: value for key, value in section.items() if key not in leave_out}
        return _validated(model, named, name)


def config_of(
    hyper_params: HyperParameters,
    section: str,
    agent: LanguageAgentParameters,
    base_dir: str | None = None,
) -> DictConfig:
    """Return the config with which the trainer of an agent's model is created.

    Paths in it start from ``base_dir``.
    """
    content: dict[str, Any] = {
        **hyper_params.language.to_dict(),
        "total_train_steps": hyper_params.rl.num_iterations,
        "temperature": agent.temperature,
        "max_tokens": agent.max_tokens,
        "base_dir": base_dir,
    }
    if section in SECTIONS:
        content[section] = getattr(hyper_params, section).to_dict()
    config = OmegaConf.create(content)
    assert isinstance(config, DictConfig)
    return config


def _names_horizon(learner: type[BaseTrainer]) -> bool:
    """Return whether a class outside Ratchet names the number of iterations.

    If it names the number without reading it, a longer run needlessly starts over; the opposite
    error would continue from weights that were trained differently.
    """
    custom_classes = [
        c for c in learner.__mro__ if c.__module__.partition(".")[0] not in _NOT_CUSTOM
    ]
    try:
        return any(name in inspect.getsource(c) for c in custom_classes for name in _HORIZON)
    except (OSError, TypeError):  # created without a file
        return True


def _validated(model: type[_Section], section: object, name: str) -> _Section:
    try:
        return model.model_validate(section)
    except ValidationError as error:
        raise ParameterError(describe_validation_error(error, prefix=name, model=model)) from error
