"""Base class of interaction protocols: names, visibility, order of play and a step.

``ratchet.protocols.base`` adds protocols with one verifier. The order of play is a table of
booleans, built once, so that a step is indexing and never a loop over the batch.
"""

from __future__ import annotations

from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Mapping, Sequence, Set
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeAlias

import torch
from torch import Tensor

from ratchet.errors import ProtocolSpecificationError, UnknownNameError, nearest

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.protocols import ProtocolCommonParameters
    from ratchet.protocols.text_specs import TextAgentSpec

Integers: TypeAlias = "Tensor | npt.NDArray[np.integer[Any]] | int"


class KeyPathMapping(Protocol):
    """Anything indexed by key paths: a TensorDict, or a nested dictionary of NumPy arrays."""

    def __getitem__(self, key: Any, /) -> Any:  # noqa: ANN401 -- a name or a tuple of names
        """Return the array or tensor at a key path."""


class ProtocolStep(NamedTuple):
    """Result of a step of a protocol, for the state after it.

    ``shared_done`` bool[*B]: the episode was decided; ``agent_done`` bool[*B, A]; ``terminated``
    bool[*B]: it was truncated undecided; ``reward`` float32[*B, A].
    """

    shared_done: Tensor
    agent_done: Tensor
    terminated: Tensor
    reward: Tensor


class _CheckedWhenBuilt(ABCMeta):
    """Checks a protocol as soon as its outermost ``__init__`` has returned."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        handler = super().__call__(*args, **kwargs)
        handler.check()
        return handler


class ProtocolHandler(ABC, metaclass=_CheckedWhenBuilt):
    """Order of play and rewards, as set by ``protocol_common`` and the protocol's section.

    Raises
    ------
    ProtocolSpecificationError
        If the protocol contradicts itself, e.g. an agent acts in a channel it can't see.

    Notes
    -----
    Shapes: ``*B`` any batch, ``R`` rounds, ``A`` agents, ``C`` channels. Rounds and seeds may be
    tensors, NumPy arrays or integers; results are tensors. From round ``R`` on, no agent is active.
    """

    def __init__(self, hyper_params: HyperParameters) -> None:
        self.hyper_params = hyper_params
        self._copies: dict[tuple[str, torch.device], Tensor] = {}

    @classmethod
    def build(cls, hyper_params: HyperParameters, base_dir: Path | None) -> Self:
        """Create an experiment's handler; paths to plug-ins, if any, start from ``base_dir``."""
        return cls(hyper_params)

    @property
    def common(self) -> ProtocolCommonParameters:
        """The section ``protocol_common``."""
        common: ProtocolCommonParameters = self.hyper_params.protocol_common
        return common

    @property
    @abstractmethod
    def agent_names(self) -> Sequence[str]:
        """The names of the agents, in the order of every agent dimension."""

    @property
    def prover_names(self) -> Sequence[str]:
        """The agents with "prover" in their names."""
        return tuple(name for name in self.agent_names if "prover" in name)

    @property
    def verifier_names(self) -> Sequence[str]:
        """The agents with "verifier" in their names."""
        return tuple(name for name in self.agent_names if "verifier" in name)

    @property
    def message_channel_names(self) -> Sequence[str]:
        """The names of the channels, in the order of every channel dimension."""
        return ("main",)

    @property
    def agent_channel_visibility(self) -> Set[tuple[str, str]]:
        """The pairs (agent, channel) where the agent sees the channel; all by default."""
        return {(agent, c) for agent in self.agent_names for c in self.message_channel_names}

    @property
    @abstractmethod
    def max_message_rounds(self) -> int:
        """The number of rounds after which an undecided episode is truncated."""

    @property
    def played_message_rounds(self) -> int:
        """The number of rounds after which an undecided episode is truncated, if it is smaller.

        Networks and histories have the size of ``max_message_rounds``.
        """
        return self.max_message_rounds

    @property
    def min_message_rounds(self) -> int:
        """The number of rounds before whose last one decisions are ignored."""
        return 1

    @property
    def max_verifier_questions(self) -> int:
        """The number of rounds in which a verifier can write."""
        verifiers = [self.agent_index(name) for name in self.verifier_names]
        return int(self.can_be_active_mask[:, verifiers].any(-1).any(-1).sum())

    @property
    def randomize_channel_order(self) -> bool:
        """Whether a text verifier's prompt shows the channels in an order sampled by the seed."""
        return False

    @property
    def stackelberg_sequence(self) -> Sequence[Sequence[str]]:
        """Groups of agents, leaders first: the verifiers, then all others."""
        others = tuple(name for name in self.agent_names if name not in self.verifier_names)
        return tuple(group for group in (tuple(self.verifier_names), others) if group)

    @cached_property
    def agent_first_active_round(self) -> Mapping[str, int]:
        """The first round in which each agent can be active; ``max_message_rounds`` if never."""
        first = {}
        for agent, active in zip(self.agent_names, self.can_be_active_mask.unbind(1), strict=True):
            rounds = active.any(-1).nonzero().flatten().tolist()
            first[agent] = rounds[0] if rounds else self.max_message_rounds
        return first

    @property
    def source_classes(self) -> tuple[type, ...]:
        """The classes that define this protocol, for code fingerprints."""
        return (type(self),)

    @property
    def num_agents(self) -> int:
        """The size of every agent dimension."""
        return len(self.agent_names)

    @property
    def num_channels(self) -> int:
        """The size of every channel dimension."""
        return len(self.message_channel_names)

    def agent_index(self, name: str) -> int:
        """Return an agent's place in agent dimensions."""
        return _index(name, self.agent_names, f"agent of {type(self).__name__}")

    def channel_index(self, name: str) -> int:
        """Return a channel's place in channel dimensions."""
        return _index(name, self.message_channel_names, f"channel of {type(self).__name__}")

    @cached_property
    def channel_visibility_mask(self) -> Tensor:
        """The channels that each agent sees, bool[A, C]."""
        mask = torch.zeros(self.num_agents, self.num_channels, dtype=torch.bool)
        for agent, channel in self.agent_channel_visibility:
            mask[self.agent_index(agent), self.channel_index(channel)] = True
        return mask

    @cached_property
    def can_be_active_mask(self) -> Tensor:
        """Agents that may act in a round and channel for some seed, bool[R, A, C]."""
        return self._table(self.can_agent_be_active)

    @abstractmethod
    def can_agent_be_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        """Return whether the agent may act in the channel in that round, for some seed."""

    @abstractmethod
    def get_active_agents_mask_from_rounds_and_seed(
        self, round: Integers, seed: Integers
    ) -> Tensor:
        """Return which agents act in which channels, bool[*B, A, C], of broadcast int[*B]."""

    @abstractmethod
    def get_verifier_guess_mask_from_rounds_and_seed(
        self, round: Integers, seed: Integers
    ) -> Tensor:
        """Return where the verifier may decide, bool[*B]."""

    def get_can_decide_mask_from_rounds_and_seed(self, round: Integers, seed: Integers) -> Tensor:
        """Return which agents may decide, bool[*B, A]: the verifiers, where they are active."""
        active = self.get_active_agents_mask_from_rounds_and_seed(round, seed).any(-1)
        return active & self.on_device("_is_verifier", active.device)

    @abstractmethod
    def step_interaction_protocol(self, env_td: KeyPathMapping) -> ProtocolStep:
        """Judge what the agents just did.

        The batch [*B] has ``round``, ``seed``, ``y`` int, ``done``, ``terminated`` bool,
        ``("agents", "done")`` bool[*B, A], ``("agents", "decision")`` int[*B, A]. An episode that
        was done or terminated before stays so, and its rewards are 0.
        """

    def counted_decisions(self, env_td: KeyPathMapping) -> Tensor:
        """Return the agents' decisions in a step, int[*B, A], as sent unless forced."""
        return torch.as_tensor(env_td["agents", "decision"])

    def reward_mid_point_estimate(self, agent_name: str) -> float:
        """Return the midpoint of an agent's good and bad rewards."""
        self.agent_index(agent_name)
        if agent_name in self.verifier_names:
            return (self.common.verifier_reward + self.common.verifier_incorrect_penalty) / 2
        if agent_name in self.prover_names:
            return self.common.prover_reward / 2
        return 0.0

    def text_agent_spec(self, agent_name: str) -> TextAgentSpec:
        """Return an agent's spec for text scenarios.

        Raises
        ------
        ProtocolSpecificationError
            If the protocol doesn't define it, as by default.
        """
        name = type(self).__name__
        raise ProtocolSpecificationError(
            f"{name} doesn't say how its agent {agent_name!r} takes part in a text scenario. Give"
            " it a method text_agent_spec(agent_name) -> ratchet.protocols.text_specs"
            ".TextAgentSpec, or choose another protocol or scenario."
        )

    def check(self) -> None:
        """Check the protocol against itself; called when it is built.

        Raises
        ------
        ProtocolSpecificationError
            Naming agent, round and channel where an agent could act in a channel it can't see.
        """
        name = type(self).__name__
        _check_names(name, "agent_names", self.agent_names)
        _check_names(name, "message_channel_names", self.message_channel_names)
        for agent, channel in sorted(self.agent_channel_visibility):
            if agent not in self.agent_names or channel not in self.message_channel_names:
                raise ProtocolSpecificationError(
                    f"{name}.agent_channel_visibility has ({agent!r}, {channel!r}), expected an"
                    f" agent of {list(self.agent_names)} and a channel of"
                    f" {list(self.message_channel_names)}."
                )
        if not 1 <= self.min_message_rounds <= self.max_message_rounds:
            raise ProtocolSpecificationError(
                f"{name}: expected 1 <= min_message_rounds <= max_message_rounds, got"
                f" {self.min_message_rounds} and {self.max_message_rounds}."
            )
        blind = (self.can_be_active_mask & ~self.channel_visibility_mask).nonzero().tolist()
        if blind:
            round, agent_index, channel_index = blind[0]
            raise ProtocolSpecificationError(
                f"{name}: agent {self.agent_names[agent_index]!r} can be active in round {round}"
                f" in channel {self.message_channel_names[channel_index]!r}, which it can't see."
                " Add the pair to agent_channel_visibility, or keep the agent silent there."
            )

    def on_device(self, name: str, device: torch.device) -> Tensor:
        """Return the tensor attribute ``name`` on a device, copied there once."""
        if (name, device) not in self._copies:
            self._copies[name, device] = getattr(self, name).to(device)
        return self._copies[name, device]

    @cached_property
    def _is_verifier(self) -> Tensor:
        """bool[A]."""
        return torch.tensor([name in self.verifier_names for name in self.agent_names])

    def _table(self, is_active: _IsActive) -> Tensor:
        """Write a rule of play down as bool[R, A, C]."""
        return torch.tensor(
            [
                [
                    [bool(is_active(agent, round, c)) for c in self.message_channel_names]
                    for agent in self.agent_names
                ]
                for round in range(self.max_message_rounds)
            ],
            dtype=torch.bool,
        )


class _IsActive(Protocol):
    def __call__(self, agent_name: str, round: int, channel_name: str, /) -> bool: ...


def rounds_and_seeds(round: Integers, seed: Integers) -> tuple[Tensor, Tensor]:
    """Create int64 tensors of one shape of rounds and seeds."""
    rounds = torch.as_tensor(round).long()
    seeds = torch.as_tensor(seed, device=rounds.device).long()
    if rounds.shape == seeds.shape:
        return rounds, seeds
    shape = torch.broadcast_shapes(rounds.shape, seeds.shape)  # type: ignore[no-untyped-call]
    return rounds.expand(shape), seeds.expand(shape)


def with_silent_end(table: Tensor) -> Tensor:
    """Append a round in which no agent is active: bool[R, ...] → bool[R + 1, ...]."""
    return torch.cat([table, torch.zeros_like(table[:1])])


def _index(name: str, names: Sequence[str], what: str) -> int:
    if name not in names:
        raise UnknownNameError(f"unknown {what}: {name!r}.{nearest(name, names)}")
    return list(names).index(name)


def _check_names(protocol: str, what: str, names: Sequence[str]) -> None:
    if isinstance(names, str) or not names or len(set(names)) != len(names):
        raise ProtocolSpecificationError(
            f"{protocol}.{what}: got {names!r}, expected a tuple of at least one name, each once."
        )
