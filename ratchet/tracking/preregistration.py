"""Preregistration of a study: its comparisons, recorded before its first run starts.

The content is the section ``preregistered`` of an experiment file; the record is in ``sweep.json``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Self, TypeAlias

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    model_validator,
)

from ratchet.store.keys import canonical_json
from ratchet.tracking.environment import CodeState, capture_code_state

SECTION = "preregistered"
ACCURACY = "accuracy"
"""Name of the accuracy on the test set among preregistered metrics."""
_DIGITS = 16


def parse_pair(text: str) -> tuple[str, str] | None:
    """Parse ``FIRST vs SECOND``; return None if the text does not name two groups."""
    first, separator, second = (part.strip() for part in text.partition(" vs "))
    return (first, second) if separator and first and second and first != second else None


def _checked_metric(name: str) -> str:
    stage, _, short = name.partition("/")
    if name != ACCURACY and not (stage and short):
        raise ValueError(f"expected {ACCURACY!r} or STAGE/NAME")
    return name


def _checked_pair(text: str) -> str:
    if parse_pair(text) is None:
        raise ValueError("expected two groups as FIRST vs SECOND")
    return text


PairText: TypeAlias = Annotated[str, AfterValidator(_checked_pair)]
"""Two groups, ``FIRST vs SECOND``."""


class Preregistration(BaseModel):
    """A study's comparisons; no stage key and no run id depends on them.

    Attributes
    ----------
    metrics
        "accuracy" on the test set, mean returns ``test/AGENT.return``, or recorded metrics
        ``STAGE/NAME``.
    baselines
        Groups with which all others are compared.
    pairs
        Instead of baselines: pairs of groups, ``FIRST vs SECOND``. With neither, all pairs.
    seeds
        Seeds of each group, in ascending order.
    hypothesis
        Free text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    metrics: list[Annotated[str, AfterValidator(_checked_metric)]] = Field([ACCURACY], min_length=1)
    baselines: list[str] = []
    pairs: list[PairText] = []
    seeds: Annotated[list[NonNegativeInt], AfterValidator(sorted), Field(min_length=1)]
    hypothesis: str = ""

    @model_validator(mode="after")
    def _has_one_kind_of_comparison(self) -> Self:
        if self.baselines and self.pairs:
            raise ValueError("expected baselines or pairs, got both")
        return self

    def digest(self, run_ids: Iterable[str]) -> str:
        """Return a digest of the content and the runs, whose ids are hashes of all parameters."""
        content = canonical_json([self.model_dump(mode="json"), sorted(run_ids)])
        return hashlib.sha256(content).hexdigest()[:_DIGITS]


class PreregistrationRecord(BaseModel):
    """A preregistration with the time, the code and a digest at the start of a sweep."""

    model_config = ConfigDict(frozen=True)

    content: Preregistration
    registered: AwareDatetime
    code: CodeState
    digest: str

    @classmethod
    def create(cls, content: Preregistration, run_ids: Iterable[str]) -> Self:
        """Record a preregistration now."""
        return cls(
            content=content,
            registered=datetime.now(UTC).replace(microsecond=0),
            code=capture_code_state(),
            digest=content.digest(run_ids),
        )
