"""The page that tests the differences of published studies again, next to their first verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ratchet.reports.comparison.formatting import difference, interval, p_value
from ratchet.reports.comparison.published import PublishedRun, read_published
from ratchet.statistics import Contrast, Estimate, iqm_difference, permutation_tests

RESULTS = Path(__file__).parents[1] / "results"
ALPHA = 0.05
INTRODUCTION = """# Reanalysis of the studies

The studies were registered and published with differences of means, tested by permutation and
corrected by max-T. [Simulations](../guides/statistics.md) show that such tests reject true
hypotheses too often where scores are skewed; comparisons now have rank tests and interquartile
means. This page is a reanalysis, not what was registered. Each table has the difference of means
and the corrected p as first published, and beside them the difference and the corrected p of
today's tests on the same runs. The studies' pages keep the registered analysis.
"""
COLUMNS = (
    "pair",
    "published difference of means",
    "published corrected p",
    "IQM difference",
    "95 % interval",
    "corrected p",
)


@dataclass(frozen=True)
class Row:
    """A pair of arms, as published and tested again; ``old`` and ``new`` are corrected p-values."""

    pair: str
    means: str
    old: str
    gap: Estimate
    new: float
    is_share: bool

    @property
    def is_changed(self) -> bool:
        """Whether only one of the tests distinguishes the arms."""
        first = float(self.old.removeprefix("< "))
        return (first <= ALPHA) != (self.new <= ALPHA)

    def __str__(self) -> str:
        percent = self.is_share
        cells = [
            f"**{self.pair}**" if self.is_changed else self.pair,
            self.means,
            self.old,
            difference(self.gap.value, percent=percent),
            interval(self.gap, percent=percent, form=difference),
            p_value(self.new),
        ]
        return f"| {' | '.join(cells)} |"


def page() -> str:
    """Return the page, with the studies in alphabetical order."""
    names = (path.stem for path in sorted(RESULTS.glob("*.json")))
    studies = {name: rows for name in names if (rows := rows_of(name))}
    everything = [row for rows in studies.values() for row in rows]
    changed = [row for row in everything if row.is_changed]
    lost = sum(row.new > ALPHA for row in changed)
    lines = [
        INTRODUCTION,
        f"Of {len(everything)} pairs in the studies' main metrics, {len(everything) - len(changed)}"
        f" have the same verdict at 5 %. In bold: {lost} distinguished only when published, and"
        f" {len(changed) - lost} only now.",
    ]
    for study, rows in studies.items():
        title = (RESULTS / f"{study}.md").read_text().splitlines()[0].removeprefix("# ")
        lines += [
            f"\n## [{title}]({study}.md)\n",
            f"| {' | '.join(COLUMNS)} |",
            f"| --- |{' ---: |' * (len(COLUMNS) - 1)}",
            *map(str, rows),
        ]
    return "\n".join(lines) + "\n"


def rows_of(study: str) -> list[Row]:
    """Test the pairs in the first table of differences of means of a study's page."""
    published = [row for row in _published_differences(study) if "difference of means" in row]
    if not published:  # of IQMs, by today's tests
        return []
    runs = read_published(RESULTS / f"{study}.json").runs
    is_share = runs[0].tests["test"].accuracy is not None
    contrasts = []
    for row in published:
        first, second = (_scores(runs, arm) for arm in row["pair"].split(" − "))
        contrasts.append(Contrast([first], [second], row["paired by seed"] == "yes"))
    gaps = [iqm_difference(each.first, each.second, paired=each.paired) for each in contrasts]
    return [
        Row(row["pair"], row["difference of means"], row["corrected p"], gap, new, is_share)
        for row, gap, new in zip(
            published, gaps, permutation_tests(contrasts).adjusted, strict=True
        )
    ]


def _scores(runs: list[PublishedRun], arm: str) -> list[float]:
    """Return an arm's accuracies, or mean returns, in the order of the seeds."""
    by_seed = {run.seed: run for run in runs if run.arm == arm}
    scores = []
    for _, run in sorted(by_seed.items()):
        accuracy = run.tests["test"].accuracy
        scores.append(run.scores["test agent.return"] if accuracy is None else accuracy)
    return scores


def _published_differences(study: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a study's first table of differences: heading → cell."""
    text = "\n".join(read_published(RESULTS / f"{study}.json").tables)
    table = re.search(r"^Differences.*\n+((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None
    head, _, *rows = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table[1].splitlines()
    )
    for row in rows:
        cells = dict(zip(head, row, strict=True))
        yield {"corrected p": cells["p"].partition(" (")[0], **cells}
