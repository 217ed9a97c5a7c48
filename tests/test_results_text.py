"""Sentences about the study of protocols on programs agree with the published data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest

from ratchet.statistics import interquartile_mean, mean
from tests.test_results_pages import (
    TEXT,
    accuracies,
    attacked_accuracies,
    differences,
    interval_of,
    table,
    text_of,
)

PROTOCOLS = ("adp", "nip", "debate", "merlin_arthur", "mnip")
PAGE = f"docs/results/{TEXT}.md"


def iqms(arms: Sequence[str]) -> list[float]:
    return [float(interquartile_mean(values_of(arm))) for arm in arms]


def values_of(arm: str) -> list[float]:
    """Return an arm's accuracies in percent in the order of the seeds."""
    by_seed = accuracies(TEXT)[arm]
    return [by_seed[seed] for seed in sorted(by_seed)]


def gains(one: str, other: str) -> list[float]:
    """Return the differences of two arms in points, one for each seed."""
    return [a - b for a, b in zip(values_of(one), values_of(other), strict=True)]


def span(values: Sequence[float], digits: int = 0) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def interval(pair: str) -> str:
    """Return a difference of means with its interval as in a sentence."""
    row = differences(TEXT)[pair]
    return f"{row['difference of means'].replace('+', '')} points, {interval_of(row)}"


def by_kind_of_bug() -> dict[str, list[float]]:
    """Return the IQMs in the page's table: arm → one for each kind of bug, without a bug first."""
    columns = zip(*table(TEXT, "By the kind of bug").values(), strict=True)
    return {
        arm: [float(cell.partition(" ")[0]) for cell in column]
        for arm, column in zip(accuracies(TEXT), columns, strict=True)
    }


def sentences() -> Iterator[tuple[str, str]]:
    """Yield documents and what they must contain."""
    (alone,) = iqms(["main"])
    helped = iqms(PROTOCOLS)
    anew = attacked_accuracies(TEXT)
    means = [mean(values_of(name)) for name in ("main", *PROTOCOLS)]
    for file in ("README.md", "docs/results/index.md"):
        yield file, f"{means[0]:.0f} % by itself, {span(means[1:])} % with provers"
    yield (
        "docs/results/index.md",
        f"{span([mean(each) for each in anew.values()])} % against new provers",
    )
    yield PAGE, f"Without a prover it decides {alone:.1f} % of 300 held-out programs correctly"
    yield PAGE, f"with provers {span(helped)} %"
    more = [mean(gains(arm, "main")) for arm in PROTOCOLS]
    each = [gain for arm in PROTOCOLS for gain in gains(arm, "main")]
    assert min(each) > 0
    yield PAGE, f"{span(more)} points more (differences of means), and {span(each)} in the seeds"
    for name, value in zip(PROTOCOLS, helped, strict=True):
        yield PAGE, f"{value:.1f} % ({name})"
    for name in PROTOCOLS:
        yield PAGE, f"{name} {interval(f'{name}_attacked − {name}')}"
    fewer = [-mean(gains(f"{name}_attacked", name)) for name in PROTOCOLS]
    yield PAGE, f"it loses {min(fewer):.1f} to {max(fewer):.1f} points: adp"
    for above, below in itertools.product(("adp", "mnip", "merlin_arthur"), ("debate", "nip")):
        assert min(gains(above, below)) > 0
    corrected = {float(row["corrected p"]) for row in differences(TEXT).values()}
    yield PAGE, f"no corrected p is above {max(corrected):.3f}"
    for name in PROTOCOLS:
        three = (values_of(name), values_of(f"{name}_attacked"), anew[name])
        cells = " | ".join(f"{mean(values):.1f}" for values in three)
        yield PAGE, f"| {name} | {cells} |"
    lost = {
        name: [a - b for a, b in zip(values_of(name), anew[name], strict=True)]
        for name in PROTOCOLS
    }
    most, least = (
        max(lost, key=lambda name: mean(lost[name])),
        min(lost, key=lambda n: mean(lost[n])),
    )
    assert (most, least) == ("adp", "debate")
    below = [each < alone for each, alone in zip(anew[most], values_of("main"), strict=True)]
    assert sum(below) == 1
    yield PAGE, f"{most} loses {mean(lost[most]):.1f} points, to {mean(anew[most]):.1f} %"
    yield (
        PAGE,
        f"{least} loses least, {mean(lost[least]):.1f} points, and keeps {mean(anew[least]):.1f} %",
    )
    failed = table(TEXT, "Always failed proportion")
    kinds = by_kind_of_bug()
    yield (
        PAGE,
        f"on correct programs, {kinds['adp'][0]:.0f} and {kinds['mnip'][0]:.0f} %,"
        f" and worse on others: {span([100 - x for x in kinds['adp'][1:] + kinds['mnip'][1:]])} %",
    )
    yield PAGE, f"equally accurate on all, {span(kinds['merlin_arthur'])} %"
    names = ("main", "adp", "debate", "merlin_arthur", "nip", "mnip")
    cells = (failed[name][1] for name in names)
    yield PAGE, f"| always failed here | {' | '.join(cells)} |"
    yield PAGE, f"| accuracy here | {' | '.join(f'{value:.1f}' for value in iqms(names))} |"


@pytest.mark.parametrize(("file", "sentence"), sentences())
def test_figures_of_the_study_of_programs_agree_with_the_data(file, sentence):
    assert sentence in text_of(file)
