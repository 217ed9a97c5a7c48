"""What a report is made from: the arms of one run or of several, read once.

Between run folders and the tables and plots, which know nothing of files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.reports.films import Film, read_films
from ratchet.reports.labels import arm_label
from ratchet.reports.spending import Billed, SpendingRow, read_billed, read_spending
from ratchet.reports.transcripts import PackedTranscripts, read_transcripts
from ratchet.statistics.returns import paid_agents
from ratchet.tracking.manifest import MAIN_ARM, RunManifest, StageRecord
from ratchet.tracking.metrics import MetricPoint
from ratchet.tracking.result_table import ResultTable
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.run_warnings import run_warnings

COMMON_AGENTS = ("verifier", "prover", "prover0", "prover1", "prover2", "simulator")


@dataclass(frozen=True)
class Arm:
    """One arm, ready to be shown.

    ``label`` is unique in a report; tables are by name ("test", "test-EXTRA", "pretrain-AGENT").
    """

    label: str
    hyper_params: Mapping[str, Any]
    points: Sequence[MetricPoint]
    tables: Mapping[str, ResultTable]
    stages: Sequence[StageRecord]

    @property
    def description(self) -> str:
        """How the arm learns and plays, e.g. "vanilla_ppo · nip"."""
        parts = [self.hyper_params.get("trainer"), self.hyper_params.get("interaction_protocol")]
        if parts[0] == "solo_agent":
            parts = [parts[0]]
        return " · ".join(str(part) for part in parts if part)

    def agent_names(self) -> list[str]:
        """List names that may stand for an agent in a metric's name, longest first."""
        names = set(COMMON_AGENTS)
        names |= {name for name in self.hyper_params.get("agents", {}) if name != "_default"}
        for table in self.tables.values():
            names |= set(paid_agents(table.columns))
        return sorted(names, key=lambda name: (-len(name), name))


@dataclass(frozen=True)
class Content:
    """All that a report shows."""

    title: str
    manifests: Sequence[RunManifest]
    arms: Sequence[Arm]
    events: Sequence[Mapping[str, Any]]
    transcripts: Sequence[PackedTranscripts] = ()
    spending: Sequence[SpendingRow] = ()
    billed: Sequence[Billed] = ()
    films: Sequence[Film] = ()
    warnings: Sequence[str] = ()

    @property
    def is_comparison(self) -> bool:
        """Whether several runs stand beside each other."""
        return len(self.manifests) > 1


def read_content(folders: Sequence[RunFolder]) -> Content:
    """Read one run, or several to be compared.

    The arms of one run keep their names; of several, each is named by its run.
    """
    manifests = [folder.manifest for folder in folders]
    arms: list[Arm] = []
    events: list[Mapping[str, Any]] = []
    for folder, manifest in zip(folders, manifests, strict=True):
        points, tables = folder.read_metrics(), folder.read_tables()
        events += folder.read_events()
        for name in _arm_names(manifest, points, tables):
            arms.append(
                Arm(
                    arm_label(manifest.run_id, name, several=len(folders) > 1),
                    manifest.arms.get(name, {}),
                    [point for point in points if point.arm == name],
                    {table.name: table for table in tables if table.arm == name},
                    [record for record in manifest.stages if record.arm == name],
                )
            )
    title = manifests[0].name if len(folders) == 1 else f"{len(folders)} runs compared"
    return Content(
        title,
        manifests,
        arms,
        events,
        read_transcripts(folders),
        read_spending(folders),
        read_billed(folders),
        read_films(folders),
        _warnings(folders),
    )


def _warnings(folders: Sequence[RunFolder]) -> list[str]:
    """List the warnings of all runs; those of several runs name the run."""
    several = len(folders) > 1
    return [
        f"{folder.run_id}: {text}" if several else text
        for folder in folders
        for text in run_warnings(folder)
    ]


def _arm_names(
    manifest: RunManifest, points: Sequence[MetricPoint], tables: Sequence[ResultTable]
) -> list[str]:
    """List all arms that have anything to show, "main" first."""
    names = [MAIN_ARM, *manifest.arms, *(p.arm for p in points), *(t.arm for t in tables)]
    return list(dict.fromkeys(names))
