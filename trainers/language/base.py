"""``BaseTrainer``: what learns from trajectories of tokens, whoever has played them.

It knows no tasks and no stages; the loop around it is :class:`trainers.language.trainer`'s.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
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
from trainers.base import NamedTrainer, Trainer
from trainers.callbacks.base import CallbackState
from trainers.custom_state import StoredAttributes

if TYPE_CHECKING:
    from ratchet.language_models.endpoints import ModelAddress
    from ratchet.language_models.local.model import LanguageModel
    from ratchet.language_models.local.rollout_engine import RolloutEngine
    from ratchet.language_models.service.engine.tokenizer import ChatTokenizer
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.rollouts.trajectory import Trajectory
    from ratchet.scenarios.language_task.parameters import LanguageAgentParameters

_HORIZON = ("total_train_steps", "num_iterations")
_NOT_OWN = {"trainers", "ratchet", "abc", "builtins", "typing"}
_Section = TypeVar("_Section", bound=SubParameters)


@dataclass(frozen=True)
class TrainingPosition:
    """Where training stands when a trainer is asked to learn."""

    seed: int = 0
    iteration: int = 0
    num_iterations: int = 1


@dataclass(frozen=True)
class InitialModel:
    """What a trainer begins with.

    Attributes
    ----------
    build_model
        Makes or loads the model that the agent's parameters name, in this process.
    agent
        The agent's parameters.
    settings
        Where and how the experiment runs.
    intent
        What names this beginning: the same one means the same model, with the same data.
    only_plays
        Nothing is learned in this process: what steps are made with is not needed.
    """

    build_model: Callable[[], LanguageModel]
    agent: LanguageAgentParameters
    settings: ExperimentSettings
    intent: str
    only_plays: bool = False


class BaseTrainer(StoredAttributes, NamedTrainer):
    """What one model learns by. Subclasses write :meth:`train`.

    ``config`` has what the experiment file says, by name: the fields of the section ``language``
    (``config.optimizer.lr``, ``config.train_service``, ``config.algorithm.get("mine", 0.5)``), the
    trainer's own section (``config.grpo``) and ``total_train_steps``. What is not there has its
    default, so that a trainer can be made alone, of a small config.

    Attributes that a subclass assigns to ``self`` are stored with the state, and restored when a
    run is resumed: numbers, texts, tensors and containers of these; modules, optimizers, random
    generators and other objects if ``__init__`` creates them. An attribute that cannot be stored
    is an error that names it, unless it is listed in ``transient_attributes``.
    """

    section: ClassVar[str] = ""
    """The name of the trainer's own section of parameters; none of a trainer of one's own."""

    keeps_rollouts: ClassVar[bool] = False
    """Whether rollouts are stages of their own, since they cannot be played again for nothing."""

    def __init__(self, config: DictConfig | Mapping[str, Any]) -> None:
        self._config: DictConfig = OmegaConf.create(config)  # type: ignore[arg-type]
        for name in ("algorithm", "train_service"):
            if name not in self._config:
                self._config[name] = {}
        given = OmegaConf.to_container(self._config, resolve=True)
        assert isinstance(given, dict)
        fields = LanguageParameters.model_fields
        named = {str(name): value for name, value in given.items() if name in fields}
        self.language = _validated(LanguageParameters, named, "language")
        self.moment = TrainingPosition(num_iterations=int(given.get("total_train_steps", 1)))
        self._setup()

    def _setup(self) -> None:
        """Read what else the config says; for the bases of ready-made trainers."""

    has_model_here: ClassVar[bool] = True
    """Whether the model is in this process; else it has a name at a service."""

    @classmethod
    def trainer_class(cls) -> type[Trainer]:
        """Return the loop that plays for this trainer and keeps its state."""
        from trainers.language.trainer import loop_around

        return loop_around(cls)

    @classmethod
    def check_learner(cls, hyper_params: HyperParameters) -> None:
        """Refuse parameters with which this trainer could not learn; none by default."""

    @classmethod
    def needed_packages(cls, hyper_params: HyperParameters) -> Sequence[str]:
        """Return the optional packages that this trainer needs; none by default."""
        return ()

    @classmethod
    def other_models(cls, hyper_params: HyperParameters) -> dict[str, str]:
        """Return models that it reads beside the one that learns: what for → folder or name."""
        return {}

    @classmethod
    def reads_horizon(cls, hyper_params: HyperParameters) -> bool:
        """Return whether how it learns depends on the number of iterations.

        With a schedule it does; so does a trainer of one's own whose class names that number.
        """
        return hyper_params.language.optimizer.schedule != "constant" or _names_horizon(cls)

    @abstractmethod
    def train(self, trajectories: list[Trajectory]) -> dict[str, float]:
        """Learn from an iteration's trajectories; return metrics."""

    @abstractmethod
    def begin(self, beginning: InitialModel) -> None:
        """Take the model that is trained, as it is before any training."""

    @property
    @abstractmethod
    def engine(self) -> RolloutEngine:
        """What writes answers with the weights as they are."""

    @property
    @abstractmethod
    def tokenizer(self) -> ChatTokenizer:
        """The model's."""

    @property
    def max_resamples(self) -> int:
        """How often an iteration may play further tasks in place of groups that are not kept."""
        return 0

    def keeps_group(self, group: Sequence[Trajectory]) -> bool:
        """Return whether anything can be learned from the answers to a task; all are kept."""
        return True

    def take_state(self) -> dict[str, Any]:
        """Return what the next step depends on: nested mappings and lists of tensors and numbers.

        Subclasses with more to keep add it.
        """
        return {}

    def put_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`take_state` returned."""

    def take_weights(self) -> CallbackState:
        """Return a copy of the weights that learn, or what names them where they are elsewhere."""
        return CallbackState()

    def put_weights(self, weights: CallbackState) -> None:
        """Put in place what :meth:`take_weights` returned."""

    def save_model(self, folder: Path) -> None:
        """Write the model as it is in Hugging Face's layout, where it is here."""

    def save_whole_model(self, folder: Path) -> None:
        """Write the model as it is, with all its weights: an adapter is merged into them."""
        self.save_model(folder)

    def address(self) -> ModelAddress | None:
        """Return where the model is asked as it is; None where it is here."""
        return None

    def close(self) -> None:
        """Let go of connections; nothing else is needed afterwards."""

    def _parameters(
        self, model: type[_Section], name: str, *, leave_out: Collection[str] = ()
    ) -> _Section:
        """Read a section of the config; its defaults where it is not there."""
        given = OmegaConf.to_container(self._config.get(name, OmegaConf.create({})), resolve=True)
        assert isinstance(given, dict)
        named = {key: value for key, value in given.items() if key not in leave_out}
        return _validated(model, named, name)


def config_of(
    hyper_params: HyperParameters,
    section: str,
    agent: LanguageAgentParameters,
    base_dir: str | None = None,
) -> DictConfig:
    """Return the config that the trainer of an agent's model is made with.

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
    found = OmegaConf.create(content)
    assert isinstance(found, DictConfig)
    return found


def _names_horizon(learner: type[BaseTrainer]) -> bool:
    """Return whether a class outside Ratchet speaks of how many iterations there are.

    Who speaks of it without reading it has a longer run begin anew; the other way round a longer
    run would go on from what a shorter one had learned in another way.
    """
    own = [c for c in learner.__mro__ if c.__module__.partition(".")[0] not in _NOT_OWN]
    try:
        return any(name in inspect.getsource(c) for c in own for name in _HORIZON)
    except (OSError, TypeError):  # made without a file
        return True


def count_tokens(trajectories: Sequence[Trajectory]) -> int:
    """Return how many tokens the model itself has written."""
    return sum(sum(trajectory.loss_mask) for trajectory in trajectories)


def _validated(model: type[_Section], given: object, name: str) -> _Section:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ParameterError(describe_validation_error(error, prefix=name, model=model)) from error
