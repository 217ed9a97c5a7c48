"""Result of a check: subject, verdict, and details with the command that fixes the problem."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, TypeAlias

SKEW_SECONDS = 30.0
"""Tolerated difference between two clocks."""


class CheckResult(StrEnum):
    """Verdict of a check."""

    GOOD = "ok"
    WARNING = "warning"
    BAD = "wrong"


class Check(NamedTuple):
    """One check: its subject, the verdict, and details with advice."""

    subject: str
    verdict: CheckResult
    details: str


class HealthResponse(NamedTuple):
    """Response of a server: status (None without a response), text, and clock skew in seconds."""

    status: int | None
    text: str
    skew: float = 0.0


@dataclass(frozen=True)
class Installation:
    """Folders of an installation: home, runs, and the store if it is not in the home.

    ``responses`` caches health checks by URL.
    """

    home: Path
    runs: Path
    store: str | None = None
    responses: dict[str, HealthResponse] = field(default_factory=dict, compare=False)

    @property
    def store_url(self) -> str:
        """Folder or URL of the store."""
        return self.store or str(self.home / "store")


CheckFunction: TypeAlias = Callable[[Installation], Iterable[Check]]
"""Performs checks; changes nothing."""


def good(subject: str, details: str) -> Check:
    """Return a passed check."""
    return Check(subject, CheckResult.GOOD, details)


def warning(subject: str, details: str) -> Check:
    """Return a check with a problem that does not prevent runs."""
    return Check(subject, CheckResult.WARNING, details)


def bad(subject: str, details: str) -> Check:
    """Return a check with a problem that prevents runs or falsifies their results."""
    return Check(subject, CheckResult.BAD, details)
