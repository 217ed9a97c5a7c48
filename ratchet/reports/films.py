"""Films of test episodes for the report: read from the run folder, to stand inside the page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.reports.labels import arm_label
from ratchet.statistics.returns import paid_agents
from ratchet.tracking.result_table import ResultTable
from ratchet.tracking.run_folder import RunFolder

MAX_BYTES = 20_000_000


@dataclass(frozen=True)
class Film:
    """One episode's: which it is, what came of it, and the GIF in base 64.

    ``packed`` is empty where the page would become too large; ``name`` is where the file lies in
    the run folder.
    """

    label: str
    test: str
    episode: int
    outcome: str
    name: str
    packed: str


def read_films(folders: Sequence[RunFolder], limit: int = MAX_BYTES) -> list[Film]:
    """Read the films of some runs by run, arm, test and episode; at most ``limit`` bytes."""
    films: list[Film] = []
    for folder in folders:
        tables = {(table.arm, table.name): table for table in folder.read_tables()}
        for path in sorted(folder.videos_path.glob("*/*.gif"), key=_place):
            test, _, episode = path.stem.rpartition("-")
            arm = path.parent.name
            content = path.read_bytes() if path.stat().st_size <= limit else b""
            limit -= len(content)
            films.append(
                Film(
                    arm_label(folder.run_id, arm, several=len(folders) > 1),
                    test,
                    int(episode),
                    _outcome(tables.get((arm, test)), int(episode)),
                    path.relative_to(folder.path).as_posix(),
                    base64.b64encode(content).decode(),
                )
            )
    return films


def _place(path: Path) -> tuple[str, str, int]:
    test, _, episode = path.stem.rpartition("-")
    return path.parent.name, test, int(episode)


def _outcome(table: ResultTable | None, episode: int) -> str:
    """Return how long an episode was and what was paid for it."""
    if table is None:
        return ""
    columns = table.columns
    agents = paid_agents(columns)
    paid = {agent: f"{columns[f'reward.{agent}'][episode]:.4g}" for agent in agents}
    returns = ", ".join(f"{agent} {value}" for agent, value in paid.items())
    if len(paid) == 1:
        returns = f"return {paid[agents[0]]}"
    return f"{columns['rounds'][episode]} steps, {returns}"
