"""``Rollouts``: the rollouts of an iteration, stored in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.rollouts.trajectory import Trajectory, load_trajectories, save_trajectories

TRAJECTORIES_FILE = "trajectories.jsonl"
METRICS_FILE = "played.json"


@dataclass
class Rollouts:
    """Rollouts of an iteration, and the next one's start position in the training set."""

    trajectories: list[Trajectory]
    metrics: dict[str, float] = field(default_factory=dict)
    cursor: int = 0

    def save(self, folder: Path) -> None:
        """Write the rollouts into a folder."""
        save_trajectories(self.trajectories, folder / TRAJECTORIES_FILE)
        metadata = {"metrics": self.metrics, "cursor": self.cursor}
        text = json.dumps(metadata, sort_keys=True)
        (folder / METRICS_FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Rollouts | None:
        """Read the files of :meth:`save`; None if none exist."""
        file = folder / METRICS_FILE
        if not file.is_file():
            return None
        metadata = json.loads(file.read_bytes())
        played = load_trajectories(folder / TRAJECTORIES_FILE)
        return cls(played, metadata["metrics"], metadata["cursor"])


def joined_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sum counts and average the other metrics over successive attempts."""
    names = dict.fromkeys(name for part in parts for name in part)
    values_by_metric = {name: [part[name] for part in parts if name in part] for name in names}
    return {
        name: sum(values) if name.startswith("rollout/num_") else sum(values) / len(values)
        for name, values in values_by_metric.items()
    }
