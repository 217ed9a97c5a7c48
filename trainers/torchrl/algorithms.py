"""TorchRL's algorithm trainers, built from its configuration groups."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType
from torchrl.trainers import Trainer

from ratchet.errors import ParameterError
from ratchet.plugins import paths_from
from trainers.named import register_trainer
from trainers.torchrl.configuration import UNREAD, trainer_parameters
from trainers.torchrl.device_placement import place_on
from trainers.torchrl.environment import with_base_dir
from trainers.torchrl.evaluation_environment import single_environment
from trainers.torchrl.key_parameters import algorithm_stage_parameters
from trainers.torchrl.trainer import TorchRlTrainer

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

logger = logging.getLogger(__name__)

FRAMES_PER_ITERATION = 1000


class AlgorithmTrainer(TorchRlTrainer):
    """One of TorchRL's algorithm trainers.

    ``torchrl.config`` configures its parts, in TorchRL's groups. The number of iterations is that
    required to collect ``trainer.total_frames``.
    """

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
        parameters |= {"progress_bar": False, "seed": None}
        _stop_prefetching(parameters)
        if isinstance(parameters.get("optimizer"), Mapping):  # its state contains its lists
            parameters["optimizer"] = {**parameters["optimizer"], "_convert_": "all"}
        trainer: Trainer = _instantiate(place_on(parameters, self.settings.device), "trainer")
        return trainer

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
        return math.ceil(_total_frames(parameters) / (batches * _frames_per_batch(parameters)))

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


@register_trainer("torchrl_a2c")
class A2cTrainer(AlgorithmTrainer):
    """Advantage actor-critic (Mnih et al. 2016)."""


@register_trainer("torchrl_reinforce")
class ReinforceTrainer(AlgorithmTrainer):
    """REINFORCE with a baseline (Williams 1992)."""


@register_trainer("torchrl_dqn")
class DqnTrainer(AlgorithmTrainer):
    """Deep Q-learning (Mnih et al. 2015)."""


@register_trainer("torchrl_sac")
class SacTrainer(AlgorithmTrainer):
    """Soft actor-critic (Haarnoja et al. 2018)."""


@register_trainer("torchrl_td3")
class Td3Trainer(AlgorithmTrainer):
    """Twin delayed deep deterministic policy gradients (Fujimoto et al. 2018)."""


@register_trainer("torchrl_ddpg")
class DdpgTrainer(AlgorithmTrainer):
    """Deep deterministic policy gradients (Lillicrap et al. 2016)."""

    # The collecting policy adds noise, which TorchRL supports nowhere else; losses must not.
    exploration_in_losses = ExplorationType.DETERMINISTIC


@register_trainer("torchrl_iql")
class IqlTrainer(AlgorithmTrainer):
    """Implicit Q-learning (Kostrikov et al. 2022)."""


@register_trainer("torchrl_cql")
class CqlTrainer(AlgorithmTrainer):
    """Conservative Q-learning (Kumar et al. 2020)."""


@register_trainer("torchrl_offline_to_online")
class OfflineToOnlineTrainer(AlgorithmTrainer):
    """Soft actor-critic that starts with offline frames (TorchRL's own, no paper)."""


def count_batches(hyper_params: HyperParameters, parameters: Mapping[str, Any]) -> int:
    """Count the collected batches of an iteration."""
    given = hyper_params.torchrl.batches_per_iteration
    return given or math.ceil(FRAMES_PER_ITERATION / _frames_per_batch(parameters))


def _frames_per_batch(parameters: Mapping[str, Any]) -> int:
    frames = parameters["collector"].get("frames_per_batch")
    if not isinstance(frames, int) or frames < 1:
        raise ParameterError(
            f"torchrl.config.collector.frames_per_batch: got {frames!r}, expected a number of"
            " frames from 1."
        )
    return frames * int(parameters.get("frame_skip") or 1)


def _total_frames(parameters: Mapping[str, Any]) -> int:
    total = parameters.get("total_frames")
    if total is None:
        total = parameters["collector"].get("total_frames")
    if not isinstance(total, int) or total < 0:
        raise ParameterError(
            f"torchrl.config.trainer.total_frames: got {total!r}, expected the number of frames to"
            " collect."
        )
    return total


def _stop_prefetching(parameters: dict[str, Any]) -> None:
    """Sample from the buffer on demand: prefetched samples would miss the latest frames."""
    buffer = parameters.get("replay_buffer")
    if isinstance(buffer, Mapping) and buffer.get("prefetch"):
        logger.warning(
            "torchrl.config.replay_buffer.prefetch: %s is not used: a resumed run would differ",
            buffer["prefetch"],
        )
        parameters["replay_buffer"] = {**buffer, "prefetch": None}


def _instantiate(config: Mapping[str, Any], what: str) -> Any:  # noqa: ANN401 -- of any class
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)
            return instantiate(config)
    except (InstantiationException, TypeError, ValueError) as error:
        raise ParameterError(f"torchrl.config.{what}: cannot be instantiated: {error}") from error
