"""Published results, and their comparison with a local run.

Next to each page of results, a ``.json`` file of the same name contains each run's differing
parameters, its test results and a digest of every decision, to verify reproductions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ratchet.errors import DataError
from ratchet.reports.comparison.comparison import Comparison
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
    data sets, and ``code`` its commit, followed by "+" for changes or untracked files. Pages of
    earlier releases lack these.
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
    code: str = ""


class PublishedPreregistration(PreregistrationRecord):
    """Preregistration of a page's sweep, and how the page differs from it."""

    differences: list[str]


class Published(_Plain):
    """All runs of a page and the package ``versions`` used.

    ``preregistered`` is missing in pages without it and of earlier releases.
    """

    schema_version: int = 1
    commands: list[str]
    versions: dict[str, str]
    runs: list[PublishedRun]
    preregistered: PublishedPreregistration | None = None


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
        """Whether all decisions are equal."""
        return self.here is not None and self.here.sha256 == self.published.sha256


def to_published(comparison: Comparison) -> Published:
    """Return the published results of a comparison."""
    grouping = comparison.grouping
    runs = [run for group in grouping.groups for run in group.runs]
    paths = grouping.paths[1:] if grouping.is_by_arm else differing_paths(runs)
    versions: dict[str, set[str]] = {}
    for run in runs:
        for name, version in run.versions.items():
            versions.setdefault(name, set()).add(version)
    return Published(
        commands=list(comparison.commands),
        versions={name: ", ".join(sorted(found)) for name, found in sorted(versions.items())},
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
    """Read the JSON file of a page of results.

    Raises
    ------
    DataError
        If the file is missing or invalid.
    """
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


def check_published(folder: RunFolder, published: Published) -> list[CheckedTest]:
    """Match a run's tests with the published ones of the same experiments.

    Raises
    ------
    DataError
        If the run is not finished, or no published run matches an arm.
    """
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
    return [
        CheckedTest(
            arm=run.arm,
            seed=run.seed,
            test=test,
            published=there,
            here=_published_test(run.tables[test]) if test in run.tables else None,
        )
        for run, each in pairs
        for test, there in each.tests.items()
    ]


def different_versions(published: Published, here: Mapping[str, str]) -> list[str]:
    """List packages whose local versions differ from the published ones."""
    return [
        f"{name} {version}, here {here.get(name, 'none')}"
        for name, version in published.versions.items()
        if name != "platform" and here.get(name) != version
    ]


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
