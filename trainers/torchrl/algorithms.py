"""TorchRL's algorithm trainers, built from its configuration groups."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from torchrl import objectives
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType
from torchrl.objectives import LossModule
from torchrl.trainers import Trainer, algorithms

from ratchet.errors import ParameterError
from ratchet.plugins import paths_from
from ratchet.seeding import seeded_globals
from trainers.named import register_trainer
from trainers.torchrl.assembly import check_trainer, library_warnings_hidden, quiet_library
from trainers.torchrl.configuration import (
    UNREAD,
    configuration_content,
    resolved_trainer,
    trainer_parameters,
)
from trainers.torchrl.device_placement import place_on
from trainers.torchrl.environment import with_base_dir
from trainers.torchrl.evaluation_environment import single_environment
from trainers.torchrl.key_parameters import algorithm_stage_parameters
from trainers.torchrl.trainer import TorchRlTrainer
from trainers.torchrl.trial_build import check_weight_updates, trial_parameters

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

logger = logging.getLogger(__name__)

FRAMES_PER_ITERATION = 1000
_LIBRARY = "torchrl."


class AlgorithmTrainer(TorchRlTrainer):
    """One of TorchRL's algorithm trainers.

    ``torchrl.config`` configures its parts, in TorchRL's groups. The number of iterations is that
    required to collect ``trainer.total_frames``.
    """

    library_trainer: ClassVar[type[Trainer]] = Trainer
    losses: ClassVar[tuple[type[LossModule], ...]] = (LossModule,)
    """Losses with which the algorithm may learn."""

    @classmethod
    def required_packages(cls, hyper_params: HyperParameters) -> tuple[str, ...]:
        """Return the packages that compose configurations and create environments."""
        return ("hydra", "gymnasium")

    def build_trainer(self) -> Trainer:
        """Instantiate TorchRL's trainer from the composed configuration."""
        parameters = self._parameters()
        for name in UNREAD:
            if parameters.get(name) is not None:
                logger.warning(
                    "torchrl.config.%s is not used: metrics go to the run's folder and its"
                    " tracker, states to the stage store",
                    name,
                )
                parameters[name] = None
        return self._instantiate_trainer(place_on(parameters, self.settings.device))

    @classmethod
    def _instantiate_trainer(cls, parameters: Mapping[str, Any]) -> Trainer:
        parameters = {**parameters, "progress_bar": False, "seed": None}
        if isinstance(parameters.get("optimizer"), Mapping):  # its state contains its lists
            parameters["optimizer"] = {**parameters["optimizer"], "_convert_": "all"}
        check_weight_updates(parameters)
        trainer: Trainer = _instantiate(parameters, "trainer")
        _check_algorithm(cls, trainer)
        return trainer

    @classmethod
    def check_build(cls, hyper_params: HyperParameters, base_dir: Path | None = None) -> None:
        """Build the trainer without worker processes, to refuse what a run would refuse."""
        if cls.build_trainer is AlgorithmTrainer.build_trainer:
            with paths_from(base_dir):
                content = configuration_content(hyper_params)
                _try_build(cls, content, None if base_dir is None else str(base_dir))

    @classmethod
    def find_cautions(cls, hyper_params: HyperParameters, base_dir: Path | None) -> Iterable[str]:
        """Return warnings about results that depend on timing, and about custom losses."""
        with paths_from(base_dir):
            return list(_cautions(hyper_params, trainer_parameters(hyper_params)))

    def build_environment(self) -> EnvBase:
        """Create one of the environments used for collection."""
        collector = self._parameters()["collector"]
        config = single_environment(collector["create_env_fn"])
        return cast("EnvBase", _instantiate(config, "training_env"))

    @cached_property
    def batches_per_iteration(self) -> int:
        """The number of collected batches in an iteration; default: at least 1,000 frames."""
        return count_batches(self.hyper_params, self._parameters())

    @property
    def num_train_iterations(self) -> int:
        """The number of training iterations; at most one in a test run."""
        with paths_from(self.settings.base_dir):
            return super().num_train_iterations

    def _parameters(self) -> dict[str, Any]:
        with paths_from(self.settings.base_dir):
            parameters = trainer_parameters(self.hyper_params)
        placed: dict[str, Any] = with_base_dir(parameters, self.settings.base_dir)
        return placed

    @classmethod
    def count_train_iterations(cls, hyper_params: HyperParameters) -> int:
        """Return the number of iterations that collect all frames."""
        parameters = trainer_parameters(hyper_params)
        batches = count_batches(hyper_params, parameters)
        total = _total_frames(hyper_params, parameters)
        return math.ceil(total / (batches * _frames_per_batch(parameters)))

    @classmethod
    def stage_key_parameters(
        cls, hyper_params: HyperParameters, stage: str, agent_name: str | None = None
    ) -> dict[str, Any]:
        """Return the parameters that a stage reads, as plain data."""
        batches = count_batches(hyper_params, trainer_parameters(hyper_params))
        return algorithm_stage_parameters(hyper_params, stage, batches)


@register_trainer("torchrl_ppo")
class PpoTrainer(AlgorithmTrainer):
    """Proximal policy optimisation (Schulman et al. 2017)."""

    library_trainer = algorithms.PPOTrainer
    losses = (objectives.PPOLoss,)


@register_trainer("torchrl_a2c")
class A2cTrainer(AlgorithmTrainer):
    """Advantage actor-critic (Mnih et al. 2016)."""

    library_trainer = algorithms.A2CTrainer
    losses = (objectives.A2CLoss,)


@register_trainer("torchrl_reinforce")
class ReinforceTrainer(AlgorithmTrainer):
    """REINFORCE with a baseline (Williams 1992)."""

    library_trainer = algorithms.ReinforceTrainer
    losses = (objectives.ReinforceLoss,)


@register_trainer("torchrl_dqn")
class DqnTrainer(AlgorithmTrainer):
    """Deep Q-learning (Mnih et al. 2015)."""

    library_trainer = algorithms.DQNTrainer
    losses = (objectives.DQNLoss, objectives.DistributionalDQNLoss, objectives.QMixerLoss)


@register_trainer("torchrl_sac")
class SacTrainer(AlgorithmTrainer):
    """Soft actor-critic (Haarnoja et al. 2018)."""

    library_trainer = algorithms.SACTrainer
    losses = (objectives.SACLoss, objectives.DiscreteSACLoss)


@register_trainer("torchrl_td3")
class Td3Trainer(AlgorithmTrainer):
    """Twin delayed deep deterministic policy gradients (Fujimoto et al. 2018)."""

    library_trainer = algorithms.TD3Trainer
    losses = (objectives.TD3Loss,)


@register_trainer("torchrl_ddpg")
class DdpgTrainer(AlgorithmTrainer):
    """Deep deterministic policy gradients (Lillicrap et al. 2016)."""

    library_trainer = algorithms.DDPGTrainer
    losses = (objectives.DDPGLoss,)

    # The collecting policy adds noise, which TorchRL supports nowhere else; losses must not.
    exploration_in_losses = ExplorationType.DETERMINISTIC


@register_trainer("torchrl_iql")
class IqlTrainer(AlgorithmTrainer):
    """Implicit Q-learning (Kostrikov et al. 2022)."""

    library_trainer = algorithms.IQLTrainer
    losses = (objectives.IQLLoss,)


@register_trainer("torchrl_cql")
class CqlTrainer(AlgorithmTrainer):
    """Conservative Q-learning (Kumar et al. 2020)."""

    library_trainer = algorithms.CQLTrainer
    losses = (objectives.CQLLoss, objectives.DiscreteCQLLoss)


@register_trainer("torchrl_offline_to_online")
class OfflineToOnlineTrainer(AlgorithmTrainer):
    """Soft actor-critic that starts with offline frames (TorchRL's own, no paper)."""

    library_trainer = algorithms.OfflineToOnlineTrainer


@lru_cache(maxsize=16)
def _try_build(trainer: type[AlgorithmTrainer], content: str, base_dir: str | None) -> None:
    parameters = resolved_trainer(content)
    check_weight_updates(parameters)
    trial = trial_parameters(with_base_dir(parameters, base_dir))
    if trial is None:
        return
    quiet_library()
    with seeded_globals(0), library_warnings_hidden():
        trial_trainer = trainer._instantiate_trainer(trial)
        try:
            check_trainer(trial_trainer)
        finally:
            trial_trainer.collector.shutdown()


def count_batches(hyper_params: HyperParameters, parameters: Mapping[str, Any]) -> int:
    """Count the collected batches of an iteration."""
    configured_count = hyper_params.torchrl.batches_per_iteration
    return configured_count or math.ceil(FRAMES_PER_ITERATION / _frames_per_batch(parameters))


def _check_algorithm(expected: type[AlgorithmTrainer], trainer: Trainer) -> None:
    """Refuse the library's trainers and losses of algorithms except the recorded one."""
    loss = trainer.loss_module
    if type(trainer) is not expected.library_trainer and _is_library(trainer):
        raise _other_algorithm("trainer", trainer, (expected.library_trainer,))
    if not isinstance(loss, expected.losses) and _is_library(loss):
        raise _other_algorithm("loss", loss, expected.losses)


def _is_library(part: object) -> bool:
    return type(part).__module__.startswith(_LIBRARY)


def _other_algorithm(name: str, part: object, expected: tuple[type, ...]) -> ParameterError:
    return ParameterError(
        f"torchrl.config.{name}: got {type(part).__name__}, expected"
        f" {' or '.join(each.__name__ for each in expected)}: the run would be recorded as an"
        " algorithm that it does not learn with. Choose the trainer and the loss of one algorithm."
    )


def _cautions(hyper_params: HyperParameters, parameters: Mapping[str, Any]) -> Iterator[str]:
    kind = str(parameters["collector"].get("_target_"))
    if kind.endswith("AsyncCollector"):
        yield (
            f"collector: {kind.rpartition('.')[2]} runs ahead of the learner: what is learned"
            " depends on timing, and a resumed run differs. Choose sync or"
            " multi_sync for reproducible runs."
        )
    loss = parameters.get("loss_module")
    target = str(loss.get("_target_", "")) if isinstance(loss, Mapping) else ""
    if target and not target.startswith(_LIBRARY):
        yield f"loss: the run is recorded as {hyper_params.trainer_name}, and learns with {target}."
    named = parameters.get("total_frames")
    if named is not None and named > (total := _total_frames(hyper_params, parameters)):
        yield (
            f"trainer.total_frames: got {named}, but training ends after {total} frames, as in the"
            f" library, whose collector stops there. Set collector.total_frames={named}."
        )


def _frames_per_batch(parameters: Mapping[str, Any]) -> int:
    frames = parameters["collector"].get("frames_per_batch")
    if not isinstance(frames, int) or frames < 1:
        raise ParameterError(
            f"torchrl.config.collector.frames_per_batch: got {frames!r}, expected a number of"
            " frames from 1."
        )
    return frames * _frame_skip(parameters)


def _total_frames(hyper_params: HyperParameters, parameters: Mapping[str, Any]) -> int:
    """Return the number of frames after which the library stops.

    Without a list of ``defaults``, the collector's number only counts if the experiment sets it.
    """
    collector = parameters["collector"].get("total_frames")
    total = parameters.get("total_frames")
    if total is None:
        total = collector
    if not isinstance(total, int) or total < 0:
        raise ParameterError(
            f"torchrl.config.trainer.total_frames: got {total!r}, expected the number of frames to"
            " collect."
        )
    config = hyper_params.torchrl.config
    is_set = "defaults" in config or "total_frames" in config.get("collector", {})
    if not is_set or not isinstance(collector, int) or collector < 0:  # -1: unlimited
        return total
    return min(total, collector * _frame_skip(parameters))


def _frame_skip(parameters: Mapping[str, Any]) -> int:
    return int(parameters.get("frame_skip") or 1)


def _instantiate(config: Mapping[str, Any], what: str) -> Any:  # noqa: ANN401 -- of any class
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)
            return instantiate(config)
    except (InstantiationException, TypeError, ValueError) as error:
        raise ParameterError(f"torchrl.config.{what}: cannot be instantiated: {error}") from error
