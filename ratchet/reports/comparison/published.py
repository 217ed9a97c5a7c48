"""Published results, and their comparison with a local run.

Next to each page of results, a ``.json`` file of the same name contains each run's differing
parameters, its test results and a digest of every decision, to verify reproductions.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ratchet.errors import DataError
from ratchet.reports.comparison.comparison import (
    Comparison,
    recorded_metric,
    test_metrics,
)
from ratchet.reports.comparison.runs import ComparedRun, differing_paths, read_compared_runs
from ratchet.reports.comparison.training_costs import used_by_stage
from ratchet.statistics.results import accuracy
from ratchet.tracking.preregistration import PreregistrationRecord
from ratchet.tracking.result_table import ResultTable
from ratchet.tracking.run_folder import RunFolder

_DECISIONS = ("datapoint_id", "y", "decision", "correct")


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class PublishedTest(_Plain):
    """Result of one test; ``sha256`` is over every row's datapoint, label and decision."""

    rows: int
    accuracy: float | None
    sha256: str

    def __str__(self) -> str:
        right = "" if self.accuracy is None else f"{100 * self.accuracy:.2f} % of "
        return f"{right}{self.rows:,} rows, {self.sha256[:8]}"


class PublishedRun(_Plain):
    """One trained experiment with its ``differing`` parameters.

    ``scores`` are by metric, ``used`` is what training used by stage, ``data`` the digests of its
    data sets, ``curves`` those of its learning curves, and ``code`` its commit, followed by "+"
    for changes or untracked files. Pages of earlier releases lack some of these.
    """

    run: str
    experiment: str
    arm: str
    seed: int
    differing: dict[str, Any]
    tests: dict[str, PublishedTest]
    scores: dict[str, float] = {}
    used: dict[str, dict[str, float]] = {}
    data: dict[str, str] = {}
    curves: dict[str, str] = {}
    code: str = ""


class PublishedPreregistration(PreregistrationRecord):
    """Preregistration of a page's sweep, and how the page differs from it."""

    differences: list[str]


class Published(_Plain):
    """All runs of a page and the package ``versions`` used.

    ``tables`` are the lines of Markdown that a page with only its main table lacks.
    ``preregistered`` is missing in pages without it and of earlier releases.
    """

    schema_version: int = 1
    commands: list[str]
    versions: dict[str, str]
    runs: list[PublishedRun]
    preregistered: PublishedPreregistration | None = None
    tables: list[str] = []


@dataclass(frozen=True)
class CheckedTest:
    """A published test and the local run's; ``here`` is None if the run lacks it."""

    arm: str
    seed: int
    test: str
    published: PublishedTest
    here: PublishedTest | None

    def __str__(self) -> str:
        return f"{self.test} of arm {self.arm} with the seed {self.seed}, {self.published}"

    @property
    def is_same(self) -> bool:
        """Whether all decisions, their number and their accuracy are equal."""
        return self.here is not None and (
            (self.here.sha256, self.here.rows) == (self.published.sha256, self.published.rows)
            and _are_equal(self.here.accuracy, self.published.accuracy)
        )


@dataclass(frozen=True)
class CheckedValue:
    """A published number or digest other than a test's; ``here`` is None if the run lacks it."""

    kind: str
    name: str
    published: float | str
    here: float | str | None

    @property
    def is_same(self) -> bool:
        """Whether both are equal."""
        return _are_equal(self.published, self.here)


@dataclass(frozen=True)
class CheckedRun:
    """A published run compared with the local run's arm.

    ``not_compared`` lists the kinds of values that the published file lacks.
    """

    arm: str
    seed: int
    code: str
    tests: Sequence[CheckedTest]
    values: Sequence[CheckedValue]
    not_compared: Sequence[str]

    @property
    def is_same(self) -> bool:
        """Whether everything that the file contains is equal."""
        return all(test.is_same for test in self.tests) and all(v.is_same for v in self.values)


def to_published(comparison: Comparison) -> Published:
    """Return the published results of a comparison."""
    grouping = comparison.grouping
    runs = [run for group in grouping.groups for run in group.runs]
    paths = grouping.paths[1:] if grouping.is_by_arm else differing_paths(runs)
    curves = comparison.learning
    versions: dict[str, set[str]] = {}
    for run in runs:
        for name, version in run.versions.items():
            versions.setdefault(name, set()).add(version)
    return Published(
        commands=list(comparison.commands),
        versions={name: ", ".join(sorted(numbers)) for name, numbers in sorted(versions.items())},
        runs=[
            PublishedRun(
                run=run.run_id,
                experiment=run.experiment,
                arm=run.arm,
                seed=run.seed,
                differing={path: run.parameters[path] for path in paths if path in run.parameters},
                tests={name: _published_test(table) for name, table in run.tables.items()},
                scores=_scores(comparison, run),
                used={stage: asdict(used) for stage, used in used_by_stage(run).items()},
                data=dict(run.data_hashes),
                curves={each.metric: _curve_digest(run, each.metric) for each in curves},
                code=run.code,
            )
            for run in runs
        ],
        preregistered=published_preregistration(comparison),
    )


def published_preregistration(comparison: Comparison) -> PublishedPreregistration | None:
    """Return the preregistration of a comparison and the differences from it."""
    checked = comparison.preregistered
    if checked is None:
        return None
    return PublishedPreregistration(**dict(checked.record), differences=list(checked.differences))


def read_published(path: Path) -> Published:
    """Read the JSON file of a page of results."""
    try:
        return Published.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); expected the JSON file that"
            " `ratchet compare --update-page` writes for a page of results, such as"
            " docs/results/NAME.json."
        ) from error
    except ValidationError as error:
        raise DataError(
            f"{path}: expected results as `ratchet compare --update-page` writes them, got {error}"
        ) from error


def check_published(folder: RunFolder, published: Published) -> list[CheckedRun]:
    """Compare a run's arms with the published runs of the same experiments."""
    runs, _ = read_compared_runs([folder])
    pairs = [(run, each) for run in runs for each in published.runs if _is_same(run, each)]
    if not pairs:
        names = sorted({each.experiment for each in published.runs})
        seeds = sorted({each.seed for each in published.runs})
        raise DataError(
            f"{folder.run_id}: got a run of {runs[0].experiment!r} with the seed {runs[0].seed},"
            f" expected one of the published experiments ({', '.join(names)}) with one of their"
            f" seeds {seeds} and none but their parameters. Their commands:\n"
            + "\n".join(published.commands)
        )
    return [_check_run(run, each) for run, each in pairs]


_KINDS = {
    "scores": "score",
    "used": "used in training",
    "data": "data set",
    "curves": "learning curve",
}


def _check_run(run: ComparedRun, published: PublishedRun) -> CheckedRun:
    local: dict[str, Mapping[str, float | str]] = {
        "scores": _local_scores(run, published.scores),
        "used": _flat({stage: asdict(used) for stage, used in used_by_stage(run).items()}),
        "data": run.data_hashes,
        "curves": {name: _curve_digest(run, name) for name in published.curves},
    }
    there: dict[str, Mapping[str, float | str]] = {
        "scores": published.scores,
        "used": _flat(published.used),
        "data": published.data,
        "curves": published.curves,
    }
    return CheckedRun(
        arm=run.arm,
        seed=run.seed,
        code=published.code,
        tests=[
            CheckedTest(
                arm=run.arm,
                seed=run.seed,
                test=test,
                published=result,
                here=_published_test(run.tables[test]) if test in run.tables else None,
            )
            for test, result in published.tests.items()
        ],
        values=[
            CheckedValue(kind, name, value, local[field].get(name))
            for field, kind in _KINDS.items()
            for name, value in there[field].items()
        ],
        not_compared=[
            kind for field, kind in _KINDS.items() if field not in published.model_fields_set
        ],
    )


def _local_scores(run: ComparedRun, names: Iterable[str]) -> dict[str, float]:
    """Return a run's scores in its metrics of these names."""
    metrics = {metric.name: metric for metric in test_metrics([run])}
    recorded = {f"{point.stage}/{name}" for point in run.points for name in point.values}
    metrics |= {name: recorded_metric(name, [run]) for name in {*names} & recorded - {*metrics}}
    scores = {name: metrics[name].score(run) for name in names if name in metrics}
    return {name: score for name, score in scores.items() if score is not None}


def _flat(used: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return each stage's usage as ``stage: amount``."""
    return {f"{stage}: {what}": n for stage, each in used.items() for what, n in each.items()}


def _curve_digest(run: ComparedRun, metric: str) -> str:
    """Return a digest of a metric's recorded values, to nine digits, by iteration."""
    stage, _, name = metric.partition("/")
    points = [point for point in run.points if point.stage == stage and name in point.values]
    values = sorted((point.iteration, f"{point.values[name]:.9g}") for point in points)
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _are_equal(first: float | str | None, second: float | str | None) -> bool:
    """Return whether texts are equal, or numbers up to rounding."""
    if isinstance(first, float | int) and isinstance(second, float | int):
        return math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-12)
    return first == second


def different_versions(published: Published, here: Mapping[str, str]) -> list[str]:
    """List packages and properties of the machine that differ from the published ones."""
    return [
        f"{name} {version}, here {here.get(name, 'none')}"
        for name, version in published.versions.items()
        if name != "platform" and here.get(name) not in (version, *version.split(", "))
    ]


def unrecorded_versions(published: Published, here: Mapping[str, str]) -> list[str]:
    """List packages and properties of this machine that the published file does not record."""
    return [f"{name} {version}" for name, version in here.items() if name not in published.versions]


def _is_same(run: ComparedRun, published: PublishedRun) -> bool:
    same = (run.experiment, run.arm, run.seed)
    return same == (published.experiment, published.arm, published.seed) and all(
        run.parameters.get(path) == value for path, value in published.differing.items()
    )


def _scores(comparison: Comparison, run: ComparedRun) -> dict[str, float]:
    scores = {each.metric.name: each.metric.score(run) for each in comparison.metrics}
    return {name: score for name, score in scores.items() if score is not None}


def _published_test(table: ResultTable) -> PublishedTest:
    columns = table.columns
    decided = "correct" in columns
    names: Sequence[str] = [n for n in _DECISIONS if n in columns] if decided else sorted(columns)
    content = json.dumps([[name, list(columns[name])] for name in names])
    return PublishedTest(
        rows=len(table),
        accuracy=accuracy(columns).value if decided else None,
        sha256=hashlib.sha256(content.encode()).hexdigest(),
    )
