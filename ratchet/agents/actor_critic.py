"""``ActorCritic``: all agents of an experiment as one module, the interface used by trainers.

Games with messages implement it in :mod:`ratchet.agents.combined`, other environments themselves.
The operators at the end are its TensorDict modules for TorchRL's losses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from ratchet.errors import StateError

if TYPE_CHECKING:
    from ratchet.agents.lr_groups import ParameterGroup
    from ratchet.parameters.trainers import RlParameters

Key = str | tuple[str, ...]
INDEX = "index"
"""Key of the indices of a minibatch's frames among the stored ones, i64 [B]."""
TURNS = "turns"


class Normalizer(nn.Module, ABC):
    """Shifts and scales observations; the identity until it is fitted. Its buffers are saved."""

    keys: tuple[Key, ...]
    """The keys of frames that it reads."""

    @abstractmethod
    def fit(self, frames: TensorDictBase) -> None:
        """Fit it to frames of any batch size."""


class ActorCritic(nn.Module, ABC):
    """All agents as one actor and critic with an agent dimension.

    Shape letters: B frames, A agents in the order of ``agent_names``. A subclass has ``parts``:
    agent → name → module, the agents' own modules and no copies.
    """

    agent_names: tuple[str, ...]
    parts: nn.ModuleDict
    normalizer: Normalizer
    has_fixed_shapes: bool = False
    """Whether what is computed depends on the number of frames alone, and not on who acts."""
    is_recurrent: bool = False
    """Whether agents remember earlier frames, so that :meth:`score` takes rows of steps [e, T]."""
    remembers: bool = False
    """Whether :meth:`score_remembered` requires :data:`INDEX`."""

    @property
    @abstractmethod
    def observation_keys(self) -> tuple[Key, ...]:
        """The keys of frames that :meth:`act` and :meth:`values` read."""

    @property
    @abstractmethod
    def action_keys(self) -> tuple[Key, ...]:
        """The actions that :meth:`act` adds."""

    @property
    def frame_keys(self) -> tuple[Key, ...]:
        """The keys of frames that :meth:`evaluate` reads."""
        return (*self.observation_keys, *self.action_keys)

    @abstractmethod
    def act(
        self,
        td: TensorDictBase,
        *,
        generators: Mapping[str, torch.Generator] | None = None,
        deterministic: bool = False,
        cache: Any = None,  # noqa: ANN401 -- each kind of agents has its own
    ) -> TensorDictBase:
        """Choose actions for one step of a rollout, without gradients.

        Adds to ``agents`` of the frames [B] the actions (the most likely if ``deterministic``),
        ``log_prob`` and ``value``. ``generators`` has one for each agent; torch's global one when
        None; the cache is from :meth:`new_cache`.
        """

    @abstractmethod
    def evaluate(
        self, td: TensorDictBase, *, agents: Sequence[str] | None = None
    ) -> TensorDictBase:
        """Evaluate the actions in frames [B], with gradients.

        ``agents``' log_prob, entropy and value come back, f32 [B, A]; 0 where an agent does not act
        or is not among ``agents``.
        """

    def score(
        self, td: TensorDictBase, *, agents: Sequence[str] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the results of :meth:`evaluate`: log_prob, entropy and value, f32 [B, A]."""
        evaluation = self.evaluate(td, agents=agents).get("agents")
        return evaluation.get("log_prob"), evaluation.get("entropy"), evaluation.get("value")

    def score_remembered(
        self, td: TensorDictBase, *, agents: Sequence[str] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute :meth:`score` for some of the frames passed to :meth:`remembering`.

        The frames [B] must be unchanged; :data:`INDEX` contains their indices.
        """
        return self.score(td, agents=agents)

    def padded_turns(self, frames: TensorDictBase) -> TensorDict:
        """Return the frames' :data:`TURNS`, which replace :meth:`remembering` at fixed shapes."""
        return TensorDict({}, frames.batch_size)

    @contextmanager
    def remembering(self, frames: TensorDictBase) -> Iterator[None]:
        """Cache values of frames [N] that no weight changes; no cache by default."""
        yield

    @abstractmethod
    def values(
        self,
        td: TensorDictBase,
        acting: Tensor | None = None,
        *,
        generators: Mapping[str, torch.Generator] | None = None,
    ) -> Tensor:
        """Return estimated returns only: f32 [B, A], 0 where ``acting`` bool [B, A] is false."""

    @abstractmethod
    def parameter_groups(
        self, rl: RlParameters, *, solo: bool = False, solo_body_factor: bool = True
    ) -> list[ParameterGroup]:
        """Divide all agents' parameters by learning rate."""

    def new_cache(self) -> Any:  # noqa: ANN401 -- each kind of agents has its own
        """Create the cache of one rollout with fixed weights; None by default."""
        return None

    def new_deferring_cache(self) -> Any:  # noqa: ANN401
        """Create a cache with which :meth:`act` defers work to :meth:`complete`."""
        return self.new_cache()

    def complete(self, rollouts: TensorDictBase, cache: Any) -> None:  # noqa: ANN401
        """Add values to rollouts [E, T] that :meth:`act` deferred: log_prob and value, if any.

        They were played with fixed weights and the cache of :meth:`new_deferring_cache`.
        """

    def hand_on(self, td: TensorDictBase, following: TensorDictBase) -> None:
        """Move what agents remember of frames [B] to those that follow; nothing by default."""

    def bind(self, source: Any) -> None:  # noqa: ANN401 -- of the agents' kind
        """Set the environment with data that observations omit; no effect by default."""

    @contextmanager
    def bound_to(self, source: Any) -> Iterator[None]:  # noqa: ANN401
        """Be bound to an environment for a while."""
        yield

    def get_dist(self, td: TensorDictBase) -> Any:  # noqa: ANN401
        """Return the distribution over all agents' actions in frames [B], with gradients."""
        raise StateError(f"{type(self).__name__}: its distributions are not available separately.")

    def solo_logits(self, agent_name: str, data: TensorDictBase) -> Tensor:
        """Return the logits f32 [B, 2] of datapoints' labels, without any play."""
        raise StateError(
            f"agent {agent_name!r}: there are no labels to predict in this scenario. Set"
            " pretrain_agents: false and take a trainer of reinforcement learning."
        )


class PolicyOperator(TensorDictModuleBase):  # type: ignore[misc] # untyped base
    """Acts for all agents, which are bound to an environment."""

    def __init__(
        self,
        combined_agents: ActorCritic,
        generators: Mapping[str, torch.Generator] | None = None,
        *,
        deterministic: bool = False,
    ) -> None:
        super().__init__()
        self.combined_agents = combined_agents
        self.generators = generators
        self.deterministic = deterministic
        self.in_keys = list(combined_agents.observation_keys)
        self.out_keys = [
            *combined_agents.action_keys,
            ("agents", "log_prob"),
            ("agents", "value"),
        ]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Add actions, log-probabilities and values to frames [B]."""
        return self.combined_agents.act(
            tensordict, generators=self.generators, deterministic=self.deterministic
        )

    def get_dist(self, tensordict: TensorDictBase) -> Any:  # noqa: ANN401 -- of the agents' kind
        """Return the distribution over actions in frames [B], with gradients."""
        return self.combined_agents.get_dist(tensordict)


class ValueOperator(TensorDictModuleBase):  # type: ignore[misc] # untyped base
    """Estimates the returns of all agents that act; they are bound to an environment."""

    def __init__(self, combined_agents: ActorCritic) -> None:
        super().__init__()
        self.combined_agents = combined_agents
        self.in_keys = list(combined_agents.observation_keys)
        self.out_keys = [("agents", "value")]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Add ``("agents", "value")`` f32 [B, A] to frames [B], with gradients."""
        tensordict.set(("agents", "value"), self.combined_agents.values(tensordict))
        return tensordict
