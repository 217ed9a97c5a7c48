"""Results of a trainer's stages: metrics, tests, pretrained agents. Imports no tensor library."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import CheckPointNotFoundError, DataError

if TYPE_CHECKING:
    from torch import Tensor

    from ratchet.rollouts.transcript_content import Transcript

FolderOf = Callable[[str], Path]
"""Maps a stage's key to the folder of the state that the stage ended with."""
Metrics = dict[str, float]
Table = dict[str, list[Any]]
TEST_PREFIX = "test_"
"""Prefix of the recorded names of a test's metrics."""


def with_test_prefix(metrics: Mapping[str, float]) -> Metrics:
    """Return a test's metrics under their recorded names."""
    return {f"{TEST_PREFIX}{name}": value for name, value in metrics.items()}


def add_metrics(metrics: dict[str, float], added: Mapping[str, float], where: str) -> None:
    """Add metrics to others; equal values may be repeated."""
    for name, value in added.items():
        known = metrics.setdefault(name, value)
        if known != value and not (math.isnan(known) and math.isnan(value)):
            raise DataError(
                f"{where}: its metric {name!r} ({value:g}) would replace Ratchet's metric of the"
                f" same name ({known:g}). Choose another name."
            )


@dataclass(frozen=True)
class TestResult:
    """Results of a test: means over datapoints, and a table.

    The table: column → one value per datapoint, in the order of ``datapoint_id``. ``films`` are
    GIFs of the first episodes, if requested; ``transcripts`` are the messages, if the report
    shows them.
    """

    __test__ = False  # not a test case

    metrics: Metrics
    table: Table
    films: tuple[bytes, ...] = ()
    transcripts: Sequence[Transcript] = ()


@dataclass(frozen=True)
class PretrainResult:
    """Result of pretraining one agent's body, or of its imitation learning (body and policy).

    ``weights``: name of a parameter or buffer → its value; ``metrics``: one mapping per epoch or
    iteration; ``table``: the predictions for the test set after pretraining, column → one value
    per datapoint.
    """

    weights: dict[str, Tensor]
    metrics: list[Metrics] = field(default_factory=list)
    table: Table = field(default_factory=dict)

    def save(self, directory: str | Path) -> None:
        """Write the result into a folder, without pickle."""
        from safetensors.torch import save_file

        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: tensor.contiguous() for name, tensor in self.weights.items()},
            directory / "weights.safetensors",
        )
        text = json.dumps({"metrics": self.metrics, "table": self.table}, sort_keys=True)
        (directory / "pretrain.json").write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: str | Path) -> PretrainResult:
        """Read the files of :meth:`save`.

        Raises CheckPointNotFoundError if the folder has none.
        """
        from safetensors.torch import load_file

        path = Path(directory) / "pretrain.json"
        if not path.is_file():
            raise CheckPointNotFoundError(f"no pretrained agent in {directory}: no {path.name}.")
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(load_file(Path(directory) / "weights.safetensors"), **content)
