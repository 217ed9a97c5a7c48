"""``phases``: a curriculum, said phase by phase.

What they come to is worked out in :mod:`ratchet.parameters.curriculum`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from ratchet.parameters.base import SubParameters
from ratchet.parameters.changes import expand_paths
from ratchet.parameters.purposes import Purpose


class PartnerParameters(SubParameters, read_for=Purpose.NOTHING):
    """How an agent plays that does not learn in a phase.

    ``kind``: ``hand_made`` (as with ``use_manual_architecture``), ``random`` (``is_random``),
    ``frozen`` as it stands, or ``pool``: each iteration with the weights of one of its earlier
    selves, drawn by lot. These are the states at the ends of the earlier phases in which it has
    learned, or of those that ``phases`` names; with ``every``, those after every so many iterations
    of these phases too. While another plays in its place, an agent's own weights are kept.
    """

    kind: Literal["hand_made", "random", "frozen", "pool"]
    phases: tuple[str, ...] | None = None
    every: PositiveInt | None = None

    @model_validator(mode="after")
    def _check_pool(self) -> Self:
        if self.kind != "pool" and (self.phases, self.every) != (None, None):
            raise ValueError(f"expected phases and every of a pool only, got kind={self.kind!r}")
        if self.phases == ():
            raise ValueError(
                "got a pool of no phases, expected one or more; leave phases out for all"
            )
        return self


def _partner(value: object) -> object:
    """Let a kind alone stand for a partner without more."""
    return {"kind": value} if isinstance(value, str) else value


def _changes(value: object) -> object:
    return expand_paths(value, "changes") if isinstance(value, Mapping) else value


class PhaseParameters(SubParameters, read_for=Purpose.NOTHING):
    """A phase of training: the experiment's parameters, but for what is said here.

    ``num_iterations`` is its own number of iterations. ``learners`` are the agents that learn, all
    that no partner stands in for when not given; the others stay as they are, bit for bit.
    ``partners`` say how agents play that do not learn; they are frozen if nothing is said.
    ``fresh`` are agents that begin the phase with their first weights again, initial or pretrained.
    ``min_message_rounds`` and ``max_message_rounds`` bound the rounds of an episode within those of
    the experiment. ``changes`` are other parameters of learning and playing, nested or dotted, such
    as ``rl.lr``. ``name`` is what it is called in reports and by changes:
    ``phases.NAME.num_iterations=20``.
    """

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    num_iterations: PositiveInt
    learners: tuple[str, ...] | None = None
    partners: dict[str, Annotated[PartnerParameters, BeforeValidator(_partner)]] = Field(
        default_factory=dict
    )
    fresh: tuple[str, ...] = ()
    min_message_rounds: PositiveInt | None = None
    max_message_rounds: PositiveInt | None = None
    changes: Annotated[dict[str, Any], BeforeValidator(_changes)] = Field(default_factory=dict)


Phases = tuple[PhaseParameters, ...]
