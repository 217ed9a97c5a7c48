"""Files in the folders of chat models' stages: written and read here."""

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
from ratchet.rollouts.specs import add_later_arrays
from ratchet.rollouts.transcripts import write_report_transcripts
from ratchet.statistics.results import PLAYED_LABEL, REWARD_PREFIX
from tasks.stages.files import TRANSCRIPTS_FILE

if TYPE_CHECKING:
    from ratchet.language_models.usage import UsageMeter
    from ratchet.parameters.base import TestGroups
    from ratchet.protocols.handler import ProtocolHandler
    from ratchet.rollouts.nested_array_dict import NestedArrayDict
    from ratchet.scenarios.base import Dataset
    from ratchet.store.manifest import Manifest
    from ratchet.store.store import StageStore
    from tasks.stages.files import Table

ROLLOUTS_FILE = "rollouts.parquet"
USAGE_FILE = "usage.json"
TRANSCRIPTS_FOLDER = "transcripts"


def write_rollouts(
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
    """Read the rollouts of a finished stage, of any earlier version."""
    rollouts = load_nested_array_dict(store.open(key) / ROLLOUTS_FILE)
    add_later_arrays(rollouts)
    return rollouts


def has_rollouts(store: StageStore, key: str) -> bool:
    """Return whether a finished stage has rollouts: none after a callback stopped the run."""
    return (store.open(key) / ROLLOUTS_FILE).is_file()


def write_usage(folder: Path, usage: UsageMeter) -> None:
    """Write a stage's usage of services and its cost."""
    text = json.dumps(usage.to_table(), indent=1, sort_keys=True)
    (folder / USAGE_FILE).write_text(text + "\n", encoding="utf-8")


def read_usage(folder: Path) -> UsageMeter:
    """Read the usage written by :func:`write_usage`; empty if the stage has no such file."""
    from ratchet.language_models.usage import UsageMeter

    path = folder / USAGE_FILE
    return UsageMeter.from_table(json.loads(path.read_bytes()) if path.is_file() else [])


def stage_usage(store: StageStore, manifest: Manifest) -> UsageMeter | None:
    """Read the usage of a finished stage; None if it calls no service."""
    if USAGE_FILE not in manifest.files:
        return None
    return read_usage(store.open(manifest.key))


def usage_metrics(usage: UsageMeter) -> dict[str, float]:
    """Return the totals of a stage's usage as metrics."""
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
    *,
    are_labels_played: bool = False,
) -> Table:
    """Return the decision on each datapoint, one row per rollout.

    ``groups`` add their columns of the dataset, if it has them; a part of a dataset, such as the
    validation split, keeps the ids of the whole. A column ``played_label`` marks labels made by
    play.
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
    for index, agent in enumerate(agents):
        table[f"{REWARD_PREFIX}{agent}"] = rewards[:, index].tolist()
    if are_labels_played:
        table[PLAYED_LABEL] = [True] * len(rollouts)
    if isinstance(dataset, NestedArrayDictDataset):
        row_by_id = {each: row for row, each in enumerate(dataset["datapoint_id"].tolist())}
        rows = [row_by_id[each] for each in table["datapoint_id"]]
        for column in (each.column for each in groups if each.column in dataset.fields):
            table[column] = dataset[column][rows].tolist()
    return table


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics without NaN and infinity, which stand for undefined ones (0/0)."""
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
