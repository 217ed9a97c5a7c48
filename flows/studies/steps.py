"""Parts and steps of a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from ratchet.experiment_files.study_file import SearchSection


class Part(StrEnum):
    """Part of a study."""

    SEARCH = "search"
    """Searches and the choice of values."""
    RUN = "run"
    """The study's runs."""
    COMPARE = "compare"
    """The comparison in the sweep's folder, without the page."""
    ATTACKS = "attacks"
    """Attacks on trained agents."""
    PAGE = "page"
    """The page with its data, and the claims."""
    AFTER = "after"
    """Further sweeps and their pages."""


@dataclass(frozen=True)
class Step:
    """One command of a study.

    Attributes
    ----------
    command
        The command line, with ``ratchet`` first.
    search
        The search whose values are chosen after the command.
    output
        File to which the command's JSON output is written.
    sweep, assignments, num_runs
        A sweep's name, its assignments as on the command line, and its number of runs; empty for
        other commands.
    """

    part: Part
    command: Sequence[str]
    search: SearchSection | None = None
    output: Path | None = None
    sweep: str = ""
    assignments: Sequence[str] = ()
    num_runs: int = 0
