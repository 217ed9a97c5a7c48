"""Parameters that agents of every tensor scenario have, and the mapping from names to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from ratchet.parameters.base import SubParameters
from ratchet.parameters.purposes import AGENT, Purpose

DEFAULT_AGENT = "_default"


class LrFactors(SubParameters):
    """Factors on a learning rate, one for the actor's loss and one for the critic's.

    - ``actor``: factor for the policy's share of the part that the parameter names.
    - ``critic``: factor for the critic's share of the part that the parameter names.
    """

    actor: float = Field(default=1.0, ge=0)
    critic: float = Field(default=1.0, ge=0)


class Schedule(SubParameters):
    """In which iterations an agent learns."""

    @property
    def agent_names(self) -> tuple[str, ...]:
        """The agents that the schedule names; none by default."""
        return ()


class ConstantSchedule(Schedule):
    """The agent learns in every iteration.

    - ``kind``: name of the schedule.
    """

    kind: Literal["constant"] = "constant"

    def is_on(self, iteration: int, agent_name: str) -> bool:
        """Return whether the agent learns in this iteration."""
        return True


class ContiguousPeriodicSchedule(Schedule):
    """The agent learns in iterations whose index mod ``period`` is in [start, stop).

    - ``kind``: name of the schedule.
    - ``start``: first iteration of each period in which the agent learns, from 0.
    - ``stop``: first iteration of each period after ``start`` in which it no longer learns.
    """

    kind: Literal["contiguous_periodic"] = "contiguous_periodic"
    period: PositiveInt
    start: int = Field(ge=0)
    stop: int = Field(ge=0)

    @model_validator(mode="after")
    def _check_order(self) -> ContiguousPeriodicSchedule:
        if not self.start < self.stop <= self.period:
            raise ValueError(
                f"expected start < stop <= period, got start={self.start}, stop={self.stop},"
                f" period={self.period}"
            )
        return self

    def is_on(self, iteration: int, agent_name: str) -> bool:
        """Return whether the agent learns in this iteration."""
        return self.start <= iteration % self.period < self.stop


class AlternatingPeriodicSchedule(Schedule):
    """Two blocks of ``period`` iterations that alternate; ``first_agent`` learns in the first.

    - ``kind``: name of the schedule.
    """

    kind: Literal["alternating_periodic"] = "alternating_periodic"
    period: PositiveInt
    first_agent: str

    def is_on(self, iteration: int, agent_name: str) -> bool:
        """Return whether the agent learns in this iteration."""
        first_block = (iteration // self.period) % 2 == 0
        return first_block == (agent_name == self.first_agent)

    @property
    def agent_names(self) -> tuple[str, ...]:
        """The named agents, each once."""
        return (self.first_agent,)


class LearningBlock(SubParameters):
    """Consecutive iterations in which the same agents learn.

    - ``agents``: agents that learn in the block.
    - ``num_iterations``: length of the block.
    """

    agents: tuple[str, ...] = Field(min_length=1)
    num_iterations: PositiveInt


class AlternatingBlocksSchedule(Schedule):
    """Blocks of iterations, each with its own length and agents, over and over.

    For ``_default``, as one schedule of all agents. An agent in several blocks learns in each; an
    agent in no block never learns.

    - ``kind``: name of the schedule.
    - ``blocks``: the blocks in order.
    """

    kind: Literal["alternating_blocks"] = "alternating_blocks"
    blocks: tuple[LearningBlock, ...] = Field(min_length=1)

    def is_on(self, iteration: int, agent_name: str) -> bool:
        """Return whether the agent learns in this iteration."""
        lengths = [block.num_iterations for block in self.blocks]
        position = iteration % sum(lengths)
        current = next(i for i, end in enumerate(accumulate(lengths)) if position < end)
        return agent_name in self.blocks[current].agents

    @property
    def agent_names(self) -> tuple[str, ...]:
        """The named agents, each once."""
        return tuple(dict.fromkeys(name for block in self.blocks for name in block.agents))


UpdateSchedule = Annotated[
    ConstantSchedule
    | ContiguousPeriodicSchedule
    | AlternatingPeriodicSchedule
    | AlternatingBlocksSchedule,
    Field(discriminator="kind"),
]


class AgentParameters(SubParameters, read_for=AGENT):
    """Parameters of every agent; stage keys include the loaded weights, not their location.

    - ``is_random``: act uniformly at random, without a network and without learning.
    - ``agent_lr_factor``: factors on ``rl.lr`` for all of the agent's parts.
    - ``body_lr_factor``: factors on ``rl.lr`` for the agent's body, in addition to
      ``agent_lr_factor``.
    - ``update_schedule``: iterations in which the agent learns. ``constant``: all of them;
      ``{kind: contiguous_periodic, period, start, stop}``: those whose index mod ``period`` is in
      [``start``, ``stop``); ``{kind: alternating_periodic, period, first_agent}``: every second
      block of ``period`` iterations, from the first block for ``first_agent`` and from the second
      for others; ``{kind: alternating_blocks, blocks}``: blocks in order, over and over, each a
      mapping with the ``agents`` that learn in it and its ``num_iterations``.
    - ``use_manual_architecture``: use the scenario's scripted agent instead of a network.
    - ``load_checkpoint_and_parameters``: start with the weights and the architecture of
      ``checkpoint_run_id``.
    - ``checkpoint_run_id``: run whose agent is loaded.
    - ``checkpoint_version``: state that is loaded: ``latest``, or the number of iterations before
      it.
    - ``use_orthogonal_initialisation``: initialise linear layers with orthogonal matrices.
    - ``orthogonal_initialisation_gain``: scale of orthogonal initial weights.
    """

    is_text: ClassVar[bool] = False  # True where agents are chat models and rollouts are text
    learns_tokens: ClassVar[bool] = False  # True where agents are language models trained here
    default_protocol: ClassVar[str] = (
        "nip"  # the protocol of the scenario's agents if none is chosen
    )

    is_random: bool = False
    agent_lr_factor: Annotated[LrFactors, Purpose.LEARNING, Purpose.PRETRAINING] = LrFactors()
    body_lr_factor: Annotated[LrFactors, Purpose.LEARNING, Purpose.PRETRAINING] = LrFactors()
    update_schedule: Annotated[UpdateSchedule, Purpose.LEARNING, Purpose.FINE_TUNING] = (
        ConstantSchedule()
    )
    use_manual_architecture: bool = False
    load_checkpoint_and_parameters: Annotated[bool, Purpose.NOTHING] = False
    checkpoint_run_id: Annotated[str | None, Purpose.NOTHING] = None
    checkpoint_version: Annotated[str, Purpose.NOTHING] = "latest"
    use_orthogonal_initialisation: bool = True
    orthogonal_initialisation_gain: float = 1.0

    def never_learns_by(self) -> str | None:
        """Return the parameter by which the agent never learns, if any."""
        flags = ("use_manual_architecture", "is_random")
        return next((name for name in flags if getattr(self, name)), None)

    @model_validator(mode="before")
    @classmethod
    def _read_short_schedule(cls, data: object) -> object:
        if isinstance(data, dict) and isinstance(data.get("update_schedule"), str):
            data = {**data, "update_schedule": {"kind": data["update_schedule"]}}
        return data


class AgentsParameters(Mapping[str, AgentParameters]):
    """Parameters by agent name; other names have those of ``_default``.

    Immutable. Created by :class:`ratchet.HyperParameters`.
    """

    def __init__(self, default: AgentParameters, named: Mapping[str, AgentParameters]) -> None:
        self._default = default
        self._named = dict(sorted(named.items()))

    def __getitem__(self, name: str) -> AgentParameters:
        return self._named.get(name, self._default)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)

    def __iter__(self) -> Iterator[str]:
        yield DEFAULT_AGENT
        yield from self._named

    def __len__(self) -> int:
        return 1 + len(self._named)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AgentsParameters):
            return NotImplemented
        return self._default == other._default and self._named == other._named

    def __hash__(self) -> int:
        return id(type(self))

    def __repr__(self) -> str:
        return f"AgentsParameters({self.to_dict()!r})"

    @property
    def named(self) -> tuple[str, ...]:
        """The names with explicit parameters."""
        return tuple(self._named)

    def to_dict(self) -> dict[str, Any]:
        """Return all values as plain data, ``_default`` first."""
        return {name: self[name].to_dict() for name in self}
