"""What is read of learning by imitation before the game begins. Light: no torch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import PositiveFloat, PositiveInt, field_validator

from ratchet.parameters.base import SubParameters, register_parameters
from ratchet.parameters.purposes import Purpose

HAND_MADE = "hand_made"
RUN = "run:"


@register_parameters("imitation")
class ImitationParameters(SubParameters, read_for=Purpose.IMITATION):
    """Agents that learn what others do, supervised, before they are trained; nobody by default.

    ``agents`` are those who imitate: each learns the messages and decisions that its model chose in
    its turns. ``source`` says whose: ``hand_made`` are the agents that ``use_manual_architecture``
    makes of the same parameters; they play in place of those who imitate, with the others as those
    are in the first state. ``run:RUN`` takes the rollouts that a run on the same data has kept
    (``settings.rollout_sample_period``), whoever played them. ``num_iterations``: how often
    hand-made agents play anew, as many frames as an iteration of training; of a run's rollouts how
    often they are gone through. ``num_epochs``: how often what is played is learned from.
    ``minibatch_size`` counts turns of the agent. All parts of an agent but its critic learn at
    ``lr``, which falls linearly to 0 with ``anneal_lr``.
    """

    agents: tuple[str, ...] = ()
    source: Annotated[str, Purpose.NOTHING] = HAND_MADE
    """Who played decides nothing; what was played, which is among the inputs of the stage, does."""
    num_iterations: PositiveInt = 100
    num_epochs: PositiveInt = 1
    minibatch_size: PositiveInt = 64
    lr: PositiveFloat = 0.002
    anneal_lr: bool = True

    @field_validator("agents")
    @classmethod
    def _check_agents(cls, agents: tuple[str, ...]) -> tuple[str, ...]:
        twice = sorted({name for name in agents if agents.count(name) > 1})
        if twice:
            raise ValueError(f"expected each agent once, got {', '.join(twice)} twice")
        return agents

    @field_validator("source")
    @classmethod
    def _check_source(cls, source: str) -> str:
        if source != HAND_MADE and not (source.startswith(RUN) and source != RUN):
            raise ValueError(f"expected 'hand_made' or 'run:' and the id of a run, got {source!r}")
        return source

    @property
    def run(self) -> str | None:
        """The run whose rollouts are imitated; None for hand-made agents."""
        return self.source.removeprefix(RUN) if self.source.startswith(RUN) else None

    def unread(self) -> Collection[str]:
        """Return everything, where nobody imitates."""
        return () if self.agents else type(self).model_fields.keys()
