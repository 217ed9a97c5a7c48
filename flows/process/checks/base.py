"""What a check is: what was looked at, how it is, and the command that mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, TypeAlias


class CheckResult(StrEnum):
    """How a check came out."""

    GOOD = "ok"
    WARNING = "warning"
    BAD = "wrong"


class Check(NamedTuple):
    """One check: what was looked at, how it is, and what to do."""

    subject: str
    verdict: CheckResult
    details: str


class Answer(NamedTuple):
    """What a server said: the status (None if nobody answered), the text, how its clock stands."""

    status: int | None
    text: str
    skew: float = 0.0


@dataclass(frozen=True)
class Places:
    """Where an installation keeps its things: home, runs folder, and store if it is elsewhere.

    ``asked`` are the servers that were asked for their health already.
    """

    home: Path
    runs: Path
    store: str | None = None
    asked: dict[str, Answer] = field(default_factory=dict, compare=False)

    @property
    def store_place(self) -> str:
        """The store's folder or URL."""
        return self.store or str(self.home / "store")


Look: TypeAlias = Callable[[Places], Iterable[Check]]
"""Looks at something and says how it is; changes nothing."""


def good(subject: str, details: str) -> Check:
    """Say that all is well."""
    return Check(subject, CheckResult.GOOD, details)


def warning(subject: str, details: str) -> Check:
    """Say that something is not as it should be, though runs may go on."""
    return Check(subject, CheckResult.WARNING, details)


def bad(subject: str, details: str) -> Check:
    """Say that something keeps runs from going on, or from being right."""
    return Check(subject, CheckResult.BAD, details)
