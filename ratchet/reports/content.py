"""Content of a report: the arms and test episodes of one or several runs, read once."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.reports.costs import Billed, CostRow, read_billed, read_costs
from ratchet.reports.labels import arm_label
from ratchet.reports.transcripts import PackedTranscripts, read_transcripts
from ratchet.statistics.results import paid_agents
from ratchet.tracking.manifest import MAIN_ARM, RunManifest, StageRecord
from ratchet.tracking.metrics import MetricPoint
from ratchet.tracking.result_table import ResultTable
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.run_warnings import run_warnings
from ratchet.tracking.stage_kinds import StageKind, kind_of

COMMON_AGENTS = ("verifier", "prover", "prover0", "prover1", "prover2", "simulator")


@dataclass(frozen=True)
class Arm:
    """One arm.

    ``label`` is unique in a report; tables are by name ("test", "test-EXTRA", "pretrain-AGENT").
    ``kinds`` are those that the run's plug-ins declare.
    """

    label: str
    hyper_params: Mapping[str, Any]
    points: Sequence[MetricPoint]
    tables: Mapping[str, ResultTable]
    stages: Sequence[StageRecord]
    kinds: Sequence[StageKind] = ()

    def kind_of(self, stage: str) -> StageKind:
        """Return the kind of a stage's name."""
        return kind_of(stage, self.kinds)

    @property
    def description(self) -> str:
        """Trainer and protocol, e.g. "vanilla_ppo · nip"."""
        parts = [self.hyper_params.get("trainer"), self.hyper_params.get("interaction_protocol")]
        if parts[0] == "solo_agent":
            parts = [parts[0]]
        return " · ".join(str(part) for part in parts if part)

    def agent_names(self) -> list[str]:
        """List possible agent names in metric names, longest first."""
        names = set(COMMON_AGENTS)
        names |= {name for name in self.hyper_params.get("agents", {}) if name != "_default"}
        for table in self.tables.values():
            names |= set(paid_agents(table.columns))
        return sorted(names, key=lambda name: (-len(name), name))


@dataclass(frozen=True)
class Content:
    """Content of a report."""

    title: str
    manifests: Sequence[RunManifest]
    arms: Sequence[Arm]
    events: Sequence[Mapping[str, Any]]
    transcripts: Sequence[PackedTranscripts] = ()
    costs: Sequence[CostRow] = ()
    billed: Sequence[Billed] = ()
    videos: Sequence[EpisodeVideo] = ()
    warnings: Sequence[str] = ()

    @property
    def description(self) -> list[str]:
        """The paragraphs that describe the experiment; none for several runs."""
        text = "" if self.is_comparison else self.manifests[0].settings.get("description") or ""
        return [paragraph for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()]

    @property
    def is_comparison(self) -> bool:
        """Whether the report compares several runs."""
        return len(self.manifests) > 1


def read_content(folders: Sequence[RunFolder]) -> Content:
    """Read one run, or several to compare.

    With several runs, arm labels include the run.
    """
    manifests = [folder.manifest for folder in folders]
    arms: list[Arm] = []
    events: list[Mapping[str, Any]] = []
    for folder, manifest in zip(folders, manifests, strict=True):
        points, tables = folder.read_metrics(), folder.read_tables()
        events += folder.read_events()
        names = [MAIN_ARM, *manifest.arms, *(p.arm for p in points), *(t.arm for t in tables)]
        for name in dict.fromkeys(names):
            arms.append(
                Arm(
                    arm_label(manifest.run_id, name, several=len(folders) > 1),
                    manifest.arms.get(name, {}),
                    [point for point in points if point.arm == name],
                    {table.name: table for table in tables if table.arm == name},
                    [record for record in manifest.stages if record.arm == name],
                    manifest.kinds,
                )
            )
    title = manifests[0].name if len(folders) == 1 else f"{len(folders)} runs compared"
    return Content(
        title,
        manifests,
        arms,
        events,
        read_transcripts(folders),
        read_costs(folders),
        read_billed(folders),
        read_videos(folders),
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


MAX_BYTES = 20_000_000


@dataclass(frozen=True)
class EpisodeVideo:
    """Video of a test episode: its outcome and the GIF in base 64.

    ``packed`` is empty if the page would become too large; ``name`` is the path in the run folder.
    """

    label: str
    test: str
    episode: int
    outcome: str
    name: str
    packed: str


def read_videos(folders: Sequence[RunFolder], limit: int = MAX_BYTES) -> list[EpisodeVideo]:
    """Read the videos of some runs by run, arm, test and episode; at most ``limit`` bytes."""
    videos: list[EpisodeVideo] = []
    for folder in folders:
        tables = {(table.arm, table.name): table for table in folder.read_tables()}
        for path in sorted(folder.videos_path.glob("*/*.gif"), key=_place):
            test, _, episode = path.stem.rpartition("-")
            arm = path.parent.name
            content = path.read_bytes() if path.stat().st_size <= limit else b""
            limit -= len(content)
            videos.append(
                EpisodeVideo(
                    arm_label(folder.run_id, arm, several=len(folders) > 1),
                    test,
                    int(episode),
                    _outcome(tables.get((arm, test)), int(episode)),
                    path.relative_to(folder.path).as_posix(),
                    base64.b64encode(content).decode(),
                )
            )
    return videos


def _place(path: Path) -> tuple[str, str, int]:
    test, _, episode = path.stem.rpartition("-")
    return path.parent.name, test, int(episode)


def _outcome(table: ResultTable | None, episode: int) -> str:
    """Return the length of an episode and the agents' returns."""
    if table is None:
        return ""
    columns = table.columns
    agents = paid_agents(columns)
    paid = {agent: f"{columns[f'reward.{agent}'][episode]:.4g}" for agent in agents}
    returns = ", ".join(f"{agent} {value}" for agent, value in paid.items())
    if len(paid) == 1:
        returns = f"return {paid[agents[0]]}"
    return f"{columns['rounds'][episode]} steps, {returns}"
