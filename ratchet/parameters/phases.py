"""``phases``: a curriculum, given phase by phase.

:mod:`ratchet.parameters.curriculum` resolves them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from ratchet.parameters.base import SubParameters
from ratchet.parameters.purposes import Purpose
from ratchet.parameters.reading.deep_merge import expand_paths


class PartnerParameters(SubParameters, read_for=Purpose.NOTHING):
    """Policy of an agent that does not learn in a phase.

    ``kind``: ``hand_made`` (as with ``use_manual_architecture``), ``random`` (``is_random``),
    ``frozen`` with its current weights, or ``pool``: in each iteration with the weights of one of
    its earlier states, sampled at random. These are the states at the ends of the earlier phases in
    which it has learned, or of those that ``phases`` names; with ``every``, also those after every
    ``every`` iterations of these phases. An agent's own weights do not change while it is replaced.

    - ``kind``: kind of policy.
    - ``phases``: phases whose last states are in a ``pool``; null: all earlier ones in which the
      agent learned.
    - ``every``: number of iterations after which a further state of a ``pool``'s phases is added to
      it; null: only their last states.
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
    """Read a plain kind as a partner without further parameters."""
    return {"kind": value} if isinstance(value, str) else value


def _changes(value: object) -> object:
    return expand_paths(value, "changes") if isinstance(value, Mapping) else value


class PhaseParameters(SubParameters, read_for=Purpose.NOTHING):
    """A phase of training: the experiment's parameters with changes.

    ``num_iterations`` is the phase's number of iterations. ``learners`` are the agents that learn,
    by default all without a partner; the others' weights stay unchanged, bit for bit. ``partners``
    set how agents that do not learn act; by default they are frozen. ``fresh`` are agents that
    start the phase with their first weights again, initial or pretrained. ``min_message_rounds``
    and ``max_message_rounds`` bound the rounds of an episode within those of the experiment.
    ``changes`` are other parameters of learning and acting, nested or dotted, such as ``rl.lr``.
    ``name`` is its name in reports and in overrides: ``phases.NAME.num_iterations=20``.

    - ``min_message_rounds``: rounds before which the verifier cannot decide in this phase.
    - ``max_message_rounds``: maximum number of rounds of an episode in this phase.
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
