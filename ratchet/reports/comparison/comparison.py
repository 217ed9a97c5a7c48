"""``Comparison``: aggregates of every group in each metric, and improvements between groups.

Pure functions of the runs that were read; text, page and figure are rendered from the result.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from ratchet.errors import DataError, nearest
from ratchet.parameters.base import TestGroups
from ratchet.parameters.test_groups import saved_test_groups
from ratchet.reports.comparison.formatting import (
    estimate_data,
    group_heading,
    interval,
    is_share,
    number,
)
from ratchet.reports.comparison.learning import LearningComparison
from ratchet.reports.comparison.options import (
    Options,
    ReferenceValue,
    band_with_enough_seeds,
    with_enough_seeds,
)
from ratchet.reports.comparison.pairs import Pair, compare_pairs, compared_labels
from ratchet.reports.comparison.runs import MAIN_TEST, ComparedRun, Group, Grouping, shared_tests
from ratchet.reports.comparison.training_costs import used_per_run
from ratchet.reports.display_table import DisplayTable
from ratchet.reports.labels import metric_label
from ratchet.statistics.estimate import Band, Estimate
from ratchet.statistics.results import agents_by_return, has_decisions, mean_return, paid_agents
from ratchet.statistics.stratified import (
    Aggregate,
    Strata,
    interquartile_mean,
    mean,
    median,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    profile_thresholds,
    stratified_interval,
)
from ratchet.tracking.preregistration import PreregistrationRecord

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import RenderableType

Score = Callable[[ComparedRun], float | None]
MetricKind = Literal["accuracy", "group", "metric"]


@dataclass(frozen=True)
class Metric:
    """A score of a run by which groups are compared.

    Attributes
    ----------
    name
        Unique in a comparison: "test", "test-NAME", "test COLUMN 2", "train/verifier.accuracy".
    kind
        "accuracy" on a test set, "group" for one group of its datapoints, or a recorded "metric".
    test
        The test set, for the first two.
    score
        Returns a run's score, or None if missing.
    groups
        The kind of groups, for "group".
    less_is_better
        Whether lower scores are better; otherwise higher ones are.
    """

    name: str
    title: str
    kind: MetricKind
    test: str
    score: Score = field(compare=False, repr=False)
    groups: TestGroups | None = field(default=None, compare=False, repr=False)
    less_is_better: bool = False

    @property
    def is_share(self) -> bool:
        """Whether scores are shares, displayed in percent."""
        return self.kind != "metric" or is_share(self.name)


@dataclass(frozen=True)
class GroupScores:
    """Scores of a group in one metric.

    ``scores`` are by task; ``gap``, the optimality gap, only for accuracies. ``profile`` is the
    share of runs better than each of the common thresholds; None for groups of datapoints.
    """

    group: Group
    scores: Strata
    iqm: Estimate
    median: Estimate
    mean: Estimate
    gap: Estimate | None
    profile: Band | None = None


@dataclass(frozen=True)
class Improvement:
    """Probability that a run of the first group is better than one of the second."""

    first: str
    second: str
    probability: Estimate


@dataclass(frozen=True)
class MetricComparison:
    """All groups in one metric."""

    metric: Metric
    rows: Sequence[GroupScores]
    improvements: Sequence[Improvement]
    pairs: Sequence[Pair] = ()

    def improvement(self, first: str, second: str) -> Estimate | None:
        """Return the probability that the first group is better than the second."""
        for improvement in self.improvements:
            if (improvement.first, improvement.second) == (first, second):
                return improvement.probability
        return None


@dataclass(frozen=True)
class CheckedPreregistration:
    """A sweep's preregistration, and how a comparison of the sweep differs from it."""

    record: PreregistrationRecord
    differences: Sequence[str]


@dataclass(frozen=True)
class Comparison:
    """A comparison of groups of runs.

    ``learning`` contains learning curves, ``lines`` reference accuracies on the test set;
    ``preregistered`` is that of the sweep, with the differences from it.
    """

    title: str
    grouping: Grouping
    metrics: Sequence[MetricComparison]
    notes: Sequence[str]
    options: Options
    commands: Sequence[str] = ()
    learning: Sequence[LearningComparison] = ()
    lines: Sequence[ReferenceValue] = ()
    preregistered: CheckedPreregistration | None = None

    @property
    def runs(self) -> list[ComparedRun]:
        """All runs of all groups."""
        return [run for group in self.grouping.groups for run in group.runs]

    def lines_of(self, metric_comparison: MetricComparison) -> Sequence[ReferenceValue]:
        """Return the reference accuracies that hold for a metric: on the test set, also sampled."""
        is_main = metric_comparison.metric.name.removesuffix("-by-sampling") == MAIN_TEST
        return self.lines if metric_comparison.metric.kind == "accuracy" and is_main else ()

    def of_kind(self, kind: MetricKind, test: str | None = None) -> list[MetricComparison]:
        """List the metrics of one kind, of one test set if it is given."""
        return [
            metric_comparison
            for metric_comparison in self.metrics
            if metric_comparison.metric.kind == kind
            and test in (None, metric_comparison.metric.test)
        ]

    @property
    def main_metrics(self) -> list[MetricComparison]:
        """Accuracies on test sets and recorded metrics, without accuracies of groups."""
        return self.of_kind("accuracy") + self.of_kind("metric")

    @property
    def tables(self) -> list[DisplayTable]:
        """The scores of all groups, a table for each main metric."""
        return [scores_table(self, each) for each in self.main_metrics]

    def to_dataframe(self) -> DataFrame:
        """Return the scores as a pandas DataFrame, a row for each metric and group."""
        import pandas

        records = [record for table in self.tables for record in table.to_records()]
        return pandas.DataFrame.from_records(records)

    def __rich__(self) -> RenderableType:
        from rich.console import Group as Rendered

        return Rendered(*(table.__rich__() for table in self.tables))

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self.tables)

    def by_groups(self) -> list[tuple[TestGroups, str, list[MetricComparison]]]:
        """List kinds of groups with a test set and the comparison of each group, in order."""
        by_kind: dict[tuple[str, str], tuple[TestGroups, str, list[MetricComparison]]] = {}
        for each in self.of_kind("group"):
            groups, test = each.metric.groups, each.metric.test
            assert groups is not None
            by_kind.setdefault((groups.name, test), (groups, test, []))[2].append(each)
        return list(by_kind.values())


def compare_groups(
    grouping: Grouping, metrics: Sequence[Metric], options: Options
) -> list[MetricComparison]:
    """Compare groups in every metric, which every run must have."""
    planned = metrics[0].kind if metrics else None
    without = replace(options, effect=None)
    return [
        _compare(grouping.groups, metric, options if metric.kind == planned else without)
        for metric in metrics
    ]


def test_metrics(runs: Sequence[ComparedRun]) -> list[Metric]:
    """List the accuracies on all common tests, then those by group."""
    tests = [
        name
        for name in shared_tests(runs)
        if all(has_decisions(run.tables[name].columns) for run in runs)
    ]
    accuracies = [_accuracy_metric(test) for test in tests]
    returns = [metric for test in shared_tests(runs) for metric in _return_metrics(runs, test)]
    return (
        accuracies + returns + [metric for test in tests for metric in _group_metrics(runs, test)]
    )


_LESS = re.compile(r"(loss|error|regret|failed_proportion)$")


def recorded_metric(
    name: str, runs: Sequence[ComparedRun], *, less_is_better: bool = False
) -> Metric:
    """Build a metric from each run's last recorded value of ``STAGE/NAME``.

    Less is also better for names that end in "loss", "error", "regret" or "failed_proportion".
    """
    stage, slash, short = name.partition("/")
    known = {f"{p.stage}/{value}" for run in runs for p in run.points for value in p.values}
    if not slash or name not in known:
        raise DataError(f"compare: no run has the metric {name!r}.{nearest(name, known)}")

    def score(run: ComparedRun) -> float | None:
        last = [p for p in run.points if p.stage == stage and short in p.values]
        return float(max(last, key=lambda point: point.iteration).values[short]) if last else None

    title = f"{metric_label(short.removeprefix(f'{stage}_'))} ({stage})"
    less = less_is_better or _LESS.search(name) is not None
    return Metric(name, title, "metric", "", score, less_is_better=less)


def _compare(groups: Sequence[Group], metric: Metric, options: Options) -> MetricComparison:
    """Compare groups by a metric; groups without a recorded value are omitted."""
    if metric.kind == "metric":
        groups = [g for g in groups if any(metric.score(run) is not None for run in g.runs)]
    scores = [_scores(group, metric) for group in groups]
    rows = [
        _row(group, group_scores, metric, options)
        for group, group_scores in zip(groups, scores, strict=True)
    ]
    if metric.kind == "group":
        return MetricComparison(metric, rows, [])
    thresholds = profile_thresholds(scores)
    less = metric.less_is_better
    rows = [replace(r, profile=_profile(r.scores, thresholds, less, options)) for r in rows]
    members = {
        group.label: (group, group_scores)
        for group, group_scores in zip(groups, scores, strict=True)
    }
    improvements = [
        each
        for one, two in compared_labels(members, replace(options, baselines=()))
        for each in _improvements(members[one], members[two], less, options)
    ]
    return MetricComparison(metric, rows, improvements, compare_pairs(groups, scores, options))


def _profile(scores: Strata, thresholds: Sequence[float], less: bool, options: Options) -> Band:
    """Estimate the share of runs that are better than each threshold, which ascend."""
    sign = -1 if less else 1
    band = performance_profile(
        [[sign * score for score in task] for task in scores],
        [sign * threshold for threshold in thresholds[::sign]],
        level=options.level,
        method=options.method,
        seed=options.seed,
    )
    ascending = replace(
        band,
        positions=list(thresholds),
        values=list(band.values)[::sign],
        lows=list(band.lows)[::sign],
        highs=list(band.highs)[::sign],
    )
    return band_with_enough_seeds(ascending, list(map(len, scores)))


def _improvements(
    first: tuple[Group, Strata], second: tuple[Group, Strata], less: bool, options: Options
) -> tuple[Improvement, Improvement]:
    """Compare two groups in both directions; the second interval mirrors the first."""
    better, worse = (second[1], first[1]) if less else (first[1], second[1])
    there = probability_of_improvement(
        better,
        worse,
        level=options.level,
        method=options.method,
        num_resamples=options.num_resamples,
        seed=options.seed,
    )
    there = with_enough_seeds(there, list(map(len, [*better, *worse])))
    back = replace(there, value=1 - there.value, low=1 - there.high, high=1 - there.low)
    one, two = first[0].label, second[0].label
    return Improvement(one, two, there), Improvement(two, one, back)


def _row(group: Group, scores: Strata, metric: Metric, options: Options) -> GroupScores:
    def estimate(aggregate: Aggregate) -> Estimate:
        estimate = stratified_interval(
            scores,
            aggregate,
            level=options.level,
            method=options.method,
            num_resamples=options.num_resamples,
            seed=options.seed,
        )
        return with_enough_seeds(estimate, list(map(len, scores)))

    gap = estimate(optimality_gap) if metric.kind != "metric" else None
    return GroupScores(
        group, scores, estimate(interquartile_mean), estimate(median), estimate(mean), gap
    )


def _scores(group: Group, metric: Metric) -> list[list[float]]:
    scores_by_task: list[list[float]] = []
    for task in group.tasks:
        scores_by_task.append([])
        for run in task:
            score = metric.score(run)
            if score is None or not math.isfinite(score):
                raise DataError(
                    f"compare: {run.label} ({group.label}, seed {run.seed}) has {score} as"
                    f" {metric.name!r}; expected a number for every run."
                )
            scores_by_task[-1].append(score)
    return scores_by_task


def _accuracy_metric(test: str) -> Metric:
    where = "the test set" if test == MAIN_TEST else test.removeprefix(f"{MAIN_TEST}-")
    return Metric(test, f"accuracy on {where}", "accuracy", test, lambda run: _accuracy(run, test))


def _return_metrics(runs: Sequence[ComparedRun], test: str) -> list[Metric]:
    """Build a metric for each agent's mean return that is a test result."""
    tables = [run.tables[test].columns for run in runs]
    required = {name for table in tables for name in agents_by_return(table)}
    where = "the test set" if test == MAIN_TEST else test.removeprefix(f"{MAIN_TEST}-")

    def metric(agent: str) -> Metric:
        def score(run: ComparedRun) -> float:
            return mean_return(run.tables[test].columns, agent).value

        title = f"mean return of {agent} on {where}"
        return Metric(f"{test} {agent}.return", title, "metric", test, score)

    shared = [
        name
        for name in paid_agents(tables[0])
        if name in required and all(name in paid_agents(table) for table in tables)
    ]
    return [metric(agent) for agent in shared]


def _group_metrics(runs: Sequence[ComparedRun], test: str) -> list[Metric]:
    """Build a metric for each group of datapoints common to all runs."""
    return [
        _group_metric(test, groups, value)
        for groups in saved_test_groups(runs[0].hyper_params)
        if all(groups.column in run.tables[test].columns for run in runs)
        for value in sorted(set.intersection(*(_values(run, test, groups) for run in runs)))
    ]


def _group_metric(test: str, groups: TestGroups, value: int) -> Metric:
    def score(run: ComparedRun) -> float | None:
        return _accuracy(run, test, groups.column, value)

    name = f"{test} {groups.name} {value}"
    return Metric(name, groups.label(value), "group", test, score, groups)


def _values(run: ComparedRun, test: str, groups: TestGroups) -> set[int]:
    return {value for value in run.tables[test].columns[groups.column] if value is not None}


def _accuracy(
    run: ComparedRun, test: str, column: str | None = None, value: int | None = None
) -> float | None:
    columns = run.tables[test].columns
    right = list(columns["correct"])
    if column is not None:
        right = list(itertools.compress(right, [each == value for each in columns[column]]))
    return sum(right) / len(right) if right else None


def scores_table(comparison: Comparison, metric_comparison: MetricComparison) -> DisplayTable:
    """Return the scores of all groups in one metric; in the first, also what training used."""
    metric, percent = metric_comparison.metric, metric_comparison.metric.is_share
    gap, used = "optimality gap", "used in training"
    rows = []
    for row in metric_comparison.rows:
        cells = {
            group_heading(comparison.grouping): row.group.label,
            "seeds": " + ".join(str(len(task)) for task in row.group.tasks),
            "IQM": number(row.iqm.value, percent=percent),
            f"{100 * comparison.options.level:g} % interval": interval(row.iqm, percent=percent),
            "median": number(row.median.value, percent=percent),
            "mean": number(row.mean.value, percent=percent),
        }
        if row.gap is not None:
            cells[gap] = number(row.gap.value, percent=percent)
        if metric_comparison is comparison.metrics[0]:
            cells[used] = str(used_per_run(row.group))
        rows.append(cells)
    records = [_record(metric_comparison, row) for row in metric_comparison.rows]
    return DisplayTable.from_mappings(metric.title, rows, records, details=(gap, used))


def _record(metric_comparison: MetricComparison, row: GroupScores) -> dict[str, object]:
    """Return a row as plain data; non-finite numbers are None."""
    iqm = estimate_data(row.iqm)
    return {
        "metric": metric_comparison.metric.name,
        "group": row.group.label,
        "seeds": row.group.seeds,
        "iqm": iqm["value"],
        "low": iqm["low"],
        "high": iqm["high"],
        "median": row.median.value,
        "mean": row.mean.value,
    }
