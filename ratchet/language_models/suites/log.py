"""Results of a suite, read from the JSON log of ``inspect-ai``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from ratchet.errors import DataError, SuiteFailedError

_RIGHT: Mapping[object, int] = {"C": 1, "I": 0, True: 1, False: 0}  # 1.0 and 0.0 are True, False


@dataclass(frozen=True)
class SuiteResult:
    """A suite's metrics, and a row for each answer.

    ``table`` has ``datapoint_id``, ``sample_id``, ``epoch``, a column for each scorer and, if
    answers are correct or not, ``correct``.
    """

    metrics: dict[str, float]
    table: dict[str, list[Any]] = field(default_factory=dict)


class _Part(BaseModel):
    """Part of a log of any version: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class _Metric(_Part):
    value: JsonValue = None


class _Score(_Part):
    name: str
    reducer: str | None = None
    metrics: dict[str, _Metric] = Field(default_factory=dict)


class _Results(_Part):
    completed_samples: int = 0
    scores: list[_Score] = Field(default_factory=list)


class _SampleScore(_Part):
    value: JsonValue = None


class _Sample(_Part):
    id: int | str
    epoch: int = 1
    scores: dict[str, _SampleScore] | None = None


class _Error(_Part):
    message: str
    traceback: str = ""


class _Log(_Part):
    status: str
    error: _Error | None = None
    results: _Results | None = None
    samples: list[_Sample] | None = None


def read_log(file: Path) -> SuiteResult:
    """Read a suite's results."""
    try:
        log = _Log.model_validate(json.loads(file.read_bytes()))
    except (ValueError, ValidationError) as error:
        raise DataError(f"{file}: invalid inspect-ai log: {error}") from error
    if log.status != "success" or log.results is None:
        what = log.error.message if log.error else "no error in the log"
        where = _last_location(log.error.traceback) if log.error else ""
        raise SuiteFailedError(f"status {log.status!r}: {what}{where}")
    return SuiteResult(_metrics(log.results), _table(log.samples or []))


def _metrics(results: _Results) -> dict[str, float]:
    """Return metrics by name; with several scorers, prefixed with the scorer's name."""
    metrics = {"num_samples": float(results.completed_samples)}
    names = [_named(score) for score in results.scores]
    for name, score in zip(names, results.scores, strict=True):
        prefix = f"{name}/" if len(names) > 1 else ""
        for metric, value in score.metrics.items():
            number = value.value
            if isinstance(number, int | float) and math.isfinite(number):
                metrics[f"{prefix}{_plain(metric)}"] = float(number)
    return metrics


def _named(score: _Score) -> str:
    return _plain(score.name if score.reducer is None else f"{score.name}_{score.reducer}")


def _plain(name: str) -> str:
    """Remove characters that trackers refuse from metric names."""
    return re.sub(r"[^\w.-]", "_", name)


def _table(samples: Sequence[_Sample]) -> dict[str, list[Any]]:
    """Return a row for each answer, in the order of sample ids."""
    rows = sorted(samples, key=lambda one: (isinstance(one.id, str), one.id, one.epoch))
    datapoint_ids = {name: k for k, name in enumerate(dict.fromkeys(row.id for row in rows))}
    table: dict[str, list[Any]] = {
        "datapoint_id": [datapoint_ids[row.id] for row in rows],
        "sample_id": [str(row.id) for row in rows],
        "epoch": [row.epoch for row in rows],
    }
    scorers = dict.fromkeys(name for row in rows for name in row.scores or {})
    for scorer in scorers:
        table[f"score.{_plain(scorer)}"] = [_value(row, scorer) for row in rows]
    first = next(iter(scorers), None)
    if first is not None:
        decided = [_right(_value(row, first)) for row in rows]
        if None not in decided:
            table["correct"] = decided
    return table


def _value(row: _Sample, scorer: str) -> JsonValue:
    score = (row.scores or {}).get(scorer)
    value = None if score is None else score.value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _right(value: JsonValue) -> int | None:
    """Return whether an answer is correct; None for other scores."""
    return _RIGHT.get(value) if isinstance(value, str | bool | int | float) else None


def _last_location(traceback: str) -> str:
    """Return the last source location in a traceback."""
    locations = [
        line.strip() for line in traceback.splitlines() if line.strip().startswith("File ")
    ]
    return f" ({locations[-1]})" if locations else ""
