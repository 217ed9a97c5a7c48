"""What the stages of chat models keep in their folders, and how it is read again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.rollouts.dataset import NestedArrayDictDataset
from ratchet.rollouts.files import load_nested_array_dict, save_nested_array_dict
from ratchet.rollouts.outcomes import (
    episode_lengths,
    episode_rewards,
    final_decisions,
    verifier_index,
    were_correct,
)
from ratchet.rollouts.spec import add_later_arrays
from ratchet.rollouts.transcripts import write_report_transcripts, write_transcripts
from ratchet.statistics.returns import PREFIX
from tasks.stages.session import TRANSCRIPTS_FILE

if TYPE_CHECKING:
    from ratchet.language_models.usage import UsageMeter
    from ratchet.parameters.test_groups import TestGroups
    from ratchet.protocols.handler import ProtocolHandler
    from ratchet.rollouts.nested_array_dict import NestedArrayDict
    from ratchet.scenarios.base import Dataset
    from ratchet.store.store import StageStore
    from tasks.stages.tables import Table

ROLLOUTS_FILE = "rollouts.parquet"
USAGE_FILE = "usage.json"
TRANSCRIPTS_FOLDER = "transcripts"


def write_played(
    folder: Path,
    rollouts: NestedArrayDict,
    protocol: ProtocolHandler,
    label_texts: Sequence[str] = (),
) -> None:
    """Write rollouts into a stage's folder, with the transcripts that reports show."""
    save_nested_array_dict(rollouts, folder / ROLLOUTS_FILE)
    write_report_transcripts(
        folder / TRANSCRIPTS_FILE,
        rollouts,
        protocol.agent_names,
        protocol.message_channel_names,
        verifier_name=protocol.verifier_names[0],
        label_texts=label_texts,
    )


def read_rollouts(store: StageStore, key: str) -> NestedArrayDict:
    """Read the rollouts of a finished stage, also of one that an earlier version made."""
    rollouts = load_nested_array_dict(store.open(key) / ROLLOUTS_FILE)
    add_later_arrays(rollouts)
    return rollouts


def write_readable(
    folder: Path, rollouts: NestedArrayDict, protocol: ProtocolHandler, form: str
) -> None:
    """Write what was said and asked for people to read, as YAML or JSON."""
    write_transcripts(
        folder / TRANSCRIPTS_FOLDER,
        rollouts,
        protocol.agent_names,
        protocol.message_channel_names,
        verifier_name=protocol.verifier_names[0],
        format="json" if form == "json" else "yaml",
    )


def has_rollouts(store: StageStore, key: str) -> bool:
    """Return whether a finished stage played any: none after a callback has stopped the run."""
    return (store.open(key) / ROLLOUTS_FILE).is_file()


def write_usage(folder: Path, usage: UsageMeter) -> None:
    """Write what a stage has asked of services, and what that cost."""
    text = json.dumps(usage.to_table(), indent=1, sort_keys=True)
    (folder / USAGE_FILE).write_text(text + "\n", encoding="utf-8")


def read_usage(folder: Path) -> UsageMeter:
    """Read what :func:`write_usage` wrote; nothing was used if the stage has no such file."""
    from ratchet.language_models.usage import UsageMeter

    path = folder / USAGE_FILE
    return UsageMeter.from_table(json.loads(path.read_bytes()) if path.is_file() else [])


def usage_metrics(usage: UsageMeter) -> dict[str, float]:
    """Return the sums of what a stage has asked of services as metrics."""
    total = usage.total
    return {
        "calls": float(total.calls),
        "prompt_tokens": float(total.prompt_tokens),
        "completion_tokens": float(total.completion_tokens),
        "cost": float(usage.cost),
    }


def result_table(
    rollouts: NestedArrayDict,
    protocol: ProtocolHandler,
    dataset: Dataset | None = None,
    groups: Sequence[TestGroups] = (),
) -> Table:
    """Return what was decided on each datapoint, a row for each rollout.

    ``groups`` add their columns of the dataset, where it has them.
    """
    agents = protocol.agent_names
    verifier = verifier_index(agents, protocol.verifier_names[0])
    rewards = episode_rewards(rollouts)
    table: dict[str, list[Any]] = {
        "datapoint_id": rollouts.array("datapoint_id").tolist(),
        "y": rollouts.array("y").tolist(),
        "decision": final_decisions(rollouts, verifier).tolist(),
        "correct": were_correct(rollouts, verifier).astype(int).tolist(),
        "rounds": episode_lengths(rollouts).tolist(),
    }
    for place, agent in enumerate(agents):
        table[f"{PREFIX}{agent}"] = rewards[:, place].tolist()
    if isinstance(dataset, NestedArrayDictDataset):
        for column in (each.column for each in groups if each.column in dataset.fields):
            table[column] = dataset[column][rollouts.array("datapoint_id")].tolist()
    return table


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Leave out what is 0/0: a metric that is missing, not a number."""
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
