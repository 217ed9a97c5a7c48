"""Sentences about the study of protocols on programs agree with the published data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest

from ratchet.statistics import interquartile_mean, mean
from tests.test_results_pages import RESULTS, TEXT, accuracies, differences, table, text_of

PROTOCOLS = ("adp", "nip", "debate", "merlin_arthur", "mnip")
ATTACKED = [f"{name}_attacked" for name in PROTOCOLS]
PAGE = f"docs/results/{TEXT}.md"


def iqms(arms: Sequence[str]) -> list[float]:
    found = accuracies(TEXT)
    return [float(interquartile_mean(list(found[arm].values()))) for arm in arms]


def gains(one: str, other: str) -> list[float]:
    """Return the differences of two arms in points, one for each seed."""
    found = accuracies(TEXT)
    return [found[one][seed] - found[other][seed] for seed in sorted(found[one])]


def span(values: Sequence[float], digits: int = 0) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def new_provers() -> dict[str, list[float]]:
    """Return the accuracies against new provers in percent, by protocol."""
    content = json.loads((RESULTS / "attacks" / f"{TEXT}.json").read_text())
    (rows,) = (each["rows"] for each in content["tables"])
    found: dict[str, list[float]] = {}
    own: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["arm"], []).append(100 * row["worst"]["value"])
        own.setdefault(row["arm"], []).append(100 * row["own"]["value"])
    published = accuracies(TEXT)
    for name in PROTOCOLS:
        assert own[name] == pytest.approx([published[name][seed] for seed in range(100, 108)])
    return found


def interval(pair: str) -> str:
    """Return a difference of means with its interval as in a sentence."""
    row = differences(TEXT)[pair]
    low, high = row["95 % interval"].strip("[]").replace("+", "").split(", ")
    return f"{row['difference of means'].replace('+', '')} points, {low} to {high}"


def sentences() -> Iterator[tuple[str, str]]:
    """Yield documents and what they must contain."""
    (alone,) = iqms(["main"])
    helped, attacked = iqms(PROTOCOLS), iqms(ATTACKED)
    anew = new_provers()
    means = [mean(list(accuracies(TEXT)[name].values())) for name in ("main", *PROTOCOLS)]
    yield "README.md", f"{means[0]:.0f} % by itself, {span(means[1:])} % with provers"
    yield "README.md", f"{span([mean(each) for each in anew.values()])} % against new provers"
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
    yield PAGE, f"It keeps {span(attacked)} %"
    corrected = {float(row["corrected p"]) for row in differences(TEXT).values()}
    yield PAGE, f"no corrected p is above {max(corrected):.3f}"
    for name in PROTOCOLS:
        two = [list(accuracies(TEXT)[arm].values()) for arm in (name, f"{name}_attacked")]
        cells = " | ".join(f"{mean(values):.1f}" for values in (*two, anew[name]))
        yield PAGE, f"| {name} | {cells} |"
    failed = table(TEXT, "Always failed proportion")
    names = ("main", "adp", "debate", "merlin_arthur", "nip", "mnip")
    cells = (f"{100 * float(failed[name][1]):.1f}" for name in names)
    yield PAGE, f"| always failed here | {' | '.join(cells)} |"
    yield PAGE, f"| accuracy here | {' | '.join(f'{value:.1f}' for value in iqms(names))} |"


@pytest.mark.parametrize(("file", "sentence"), sentences())
def test_figures_of_the_study_of_programs_agree_with_the_data(file, sentence):
    assert sentence in text_of(file)
