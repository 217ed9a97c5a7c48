"""``TensorEnvironment``: base class of the environments that tensor trainers use.

One step advances all episodes. :mod:`ratchet.scenarios.environment` contains games with messages,
:mod:`ratchet.scenarios.gymnasium` all others.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ratchet.errors import DataError, ParameterError, RenamedAttributes, StateError
from ratchet.parameters.trainers import RlParameters
from ratchet.scenarios.dataset import DataCursor
from ratchet.seeding import torch_generator

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.handler import ProtocolHandler
    from ratchet.rollouts.transcript_content import Transcript
    from ratchet.scenarios.dataset import TensorDictDataset

Key = str | tuple[str, str]
COUNTED_DECISION = ("agents", "counted_decision")
"""Key of effective decisions in a step's result, if they differ from the agents'."""


@dataclass(frozen=True)
class RolloutShape:
    """``num_envs`` parallel episodes of ``steps`` steps each."""

    num_envs: int
    steps: int

    @property
    def frames(self) -> int:
        """Frames in one iteration."""
        return self.num_envs * self.steps


def rollout_shape(
    rl: RlParameters, max_rounds: int, num_datapoints: int, *, train: bool
) -> RolloutShape:
    """Return the shape of one iteration's rollouts.

    Frames are ``frames_per_batch``, or ``rollouts_per_iteration`` times the maximal number of
    rounds, or by default those of one rollout for each datapoint. Steps are
    ``steps_per_env_per_iteration``, which must divide the frames; by default they are the maximal
    number of rounds, and frames are rounded up to complete episodes. Test episodes always run to
    their end, and never more in parallel than the number of datapoints.
    """
    frames = rl.frames_per_batch
    if rl.rollouts_per_iteration is not None:
        frames = rl.rollouts_per_iteration * max_rounds
    if frames is None:
        frames = num_datapoints * max_rounds
    if not train:
        return RolloutShape(min(math.ceil(frames / max_rounds), num_datapoints), max_rounds)
    steps = rl.steps_per_env_per_iteration
    if steps is None:
        return RolloutShape(math.ceil(frames / max_rounds), max_rounds)
    if frames % steps:
        raise ParameterError(
            f"rl.steps_per_env_per_iteration: got {steps}, expected a divisor of the {frames}"
            f" frames of one iteration. {math.ceil(frames / steps) * steps} frames would do."
        )
    return RolloutShape(frames // steps, steps)


class TensorEnvironment(RenamedAttributes, ABC):
    """Parallel episodes, each about one datapoint; E episodes, A agents.

    A state is a tensordict [E] with ``datapoint_id``, ``seed`` int64 and ``done``, ``terminated``
    bool: the episode is over if either is true. ``agents`` may contain ``active`` bool [E, A, ...]:
    the agents that act, all if it is missing; and ``done`` bool [E, A]: the agents whose part is
    over before the others'.

    A step gives the next states and ``("agents", "reward")`` f32 [E, A]. ``("agents",
    "truncated")`` bool [E, A] marks agents stopped by a time limit: their return is then
    bootstrapped from the last observation. Without that key every end is a true one. ``("agents",
    "episode_reward")`` f32 [E, A], if given, sums the rewards since the start. ``("agents",
    "counted_decision")`` int64 [E, A], if given, are the effective decisions if they differ from
    the agents'.
    """

    renamed_attributes: ClassVar[Mapping[str, str]] = {
        "data_cycler": "reset() without arguments iterates over the dataset",
        "main_message_out_key": 'agents send ("agents", "message")',
        "main_message_space_shape": "the message space has env.num_symbols symbols",
        "message_history_shape": 'see the shape of "x" in env.observation_spec',
        "rand_step": "agents with is_random act at random",
        "rollout": "trainer._get_data_collectors()[0].collect(iteration) plays rollouts",
        "set_seed": "reset(ids, seeds) takes a seed for each episode",
        "split": "env.train is true for the training set",
    }
    reward_key: ClassVar[Key] = ("agents", "reward")
    """Where rewards are in what :meth:`step` returns."""
    outcome_keys: tuple[Key, ...]
    """Keys of a step's result that belong to the step: ends and rewards."""
    hidden_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of a state that neither agents nor losses read: omitted from rollouts."""
    carries_episodes: bool = False
    """Whether an iteration continues the unfinished episodes of the previous one."""

    def __init__(
        self,
        hyper_params: HyperParameters,
        dataset: TensorDictDataset,
        protocol_handler: ProtocolHandler,
        *,
        train: bool,
        device: str | torch.device = "cpu",
    ) -> None:
        self.hyper_params = hyper_params
        self.protocol_handler = protocol_handler
        self.train = train
        self.device = torch.device(device)
        self.dataset = dataset if self.device.type == "cpu" else dataset.to(self.device)
        self._shape = self._rollout_shape()

    @abstractmethod
    def _rollout_shape(self) -> RolloutShape:
        """Return the number of parallel episodes in one iteration, and of their steps."""

    @property
    @abstractmethod
    def action_keys(self) -> list[Key]:
        """The keys of actions in the states passed to :meth:`step`."""

    @abstractmethod
    def reset(self, ids: Tensor | None = None, seeds: Tensor | None = None) -> TensorDict:
        """Start episodes about datapoints int64 [E], with seeds int64 [E]: first states [E].

        Missing arguments are sampled, see :meth:`new_episodes`.
        """

    def new_episodes(
        self, ids: Tensor | None = None, seeds: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return datapoints and seeds of new episodes, int64 [E] each: those given, or the next.

        The next :attr:`num_envs`, each datapoint once before any is repeated, in an order that
        depends only on the experiment's seed. The position in this order is not part of the state:
        a loop that must be resumable passes them itself.
        """
        if ids is None:
            ids = self._order.take(self.num_envs)
        if seeds is None:
            seeds = torch.randint(2**31, ids.shape, generator=self._seed_draws)
        return ids.to(self.device), seeds.to(self.device)

    @cached_property
    def _order(self) -> DataCursor:
        return DataCursor(len(self.dataset), self.hyper_params.seed, purpose=f"reset.{self.train}")

    @cached_property
    def _seed_draws(self) -> torch.Generator:
        return torch_generator(self.hyper_params.seed, "reset", 0, f"seeds.{self.train}")

    @abstractmethod
    def step(self, td: TensorDictBase) -> TensorDict:
        """Apply the agents' actions to states [E], which are not modified."""

    @abstractmethod
    def reset_where(
        self, td: TensorDictBase, mask: Tensor, ids: Tensor, seeds: Tensor
    ) -> TensorDictBase:
        """Start new episodes where ``mask`` bool [E] is true, and keep the other states.

        The states are results of :meth:`step`, with or without the keys of the step. Ids and seeds
        are int64 [k], one for each true value of ``mask``, in order.
        """

    @property
    def num_envs(self) -> int:
        """Number of parallel episodes in one iteration; :meth:`reset` accepts any number."""
        return self._shape.num_envs

    @property
    def steps_per_env_per_iteration(self) -> int:
        """Steps of each of them in one iteration."""
        return self._shape.steps

    @property
    def frames_per_batch(self) -> int:
        """Frames in one iteration."""
        return self._shape.frames

    @property
    def batch_size(self) -> torch.Size:
        """[E]."""
        return torch.Size([self.num_envs])

    def own(self) -> Self:
        """Return a copy of this environment for exclusive use.

        Returns itself, if an episode's next step depends only on its state.
        """
        return self

    @property
    def num_films(self) -> int:
        """Of how many test episodes films are wanted; none by default."""
        return 0

    def film(self, played: Mapping[int, Sequence[Tensor]]) -> tuple[bytes, ...]:
        """Return films of episodes, given each datapoint's actions; none by default."""
        return ()

    def close(self) -> None:
        """Release the resources of :meth:`own`."""

    def save_episodes(self, td: TensorDictBase) -> dict[str, Tensor]:
        """Return the tensors, by name, that are required to continue episodes."""
        raise StateError(
            f"{type(self).__name__} cannot save episodes: it resets in each iteration."
        )

    def restore_episodes(self, saved: dict[str, Tensor]) -> TensorDictBase:
        """Return the states [E] that :meth:`save_episodes` was given."""
        raise StateError(
            f"{type(self).__name__} cannot save episodes: it resets in each iteration."
        )

    def transcripts(self, rollouts: TensorDictBase) -> list[Transcript]:
        """Return transcripts of rollouts ``[E, T]`` for the report; none by default.

        As :func:`ratchet.rollouts.transcript_content.report_transcripts` does.
        """
        return []

    def gather_data(self, datapoint_id: Tensor) -> TensorDictBase:
        """Return data that agents see in addition to observations; none by default."""
        return TensorDict({}, batch_size=datapoint_id.shape)


def check_new_episodes(mask: Tensor, ids: Tensor, seeds: Tensor) -> Tensor:
    """Return the indices of new episodes, after a check that each has a datapoint and a seed."""
    where = mask.nonzero().flatten()
    if where.shape != ids.shape or where.shape != seeds.shape:
        raise DataError(
            f"reset_where: got {len(ids)} datapoints and {len(seeds)} seeds for {len(where)}"
            " episodes, expected one of each for every true value of the mask."
        )
    return where
