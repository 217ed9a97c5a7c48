"""Sentences about models that prove their divisors agree with the published data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ratchet.reports.comparison.published import read_published
from ratchet.statistics import mean
from tests.test_results_pages import PROVING, RESULTS, accuracies, differences, text_of

PAGE = f"docs/results/{PROVING}.md"


def interval(pair: str) -> str:
    """Return a difference's interval in points and its corrected p, as in a sentence."""
    row = differences(PROVING)[pair]
    low, high = row["95 % interval"].replace("−", "-").strip("[]").split(", ")
    ends = f"{100 * float(low):.1f} to {100 * float(high):.1f}".replace("-", "−")
    return f"{ends}; corrected p {row['corrected p']}"


def known() -> dict[str, float]:
    """Return the mean share of correct divisors in percent, with or without a proof, by arm."""
    found: dict[str, list[float]] = {}
    for run in read_published(RESULTS / f"{PROVING}.json").runs:
        found.setdefault(run.arm, []).append(100 * run.scores["test/test_correct"])
    return {arm: mean(values) for arm, values in found.items()}


def sentences() -> Iterator[tuple[str, str]]:
    """Yield documents and what they must contain."""
    proved = {
        arm: 100 * mean(list(by_seed.values())) for arm, by_seed in accuracies(PROVING).items()
    }
    right = known()
    yield "README.md", f"{proved['annotated']:.1f} % of greatest common divisors after transcripts"
    yield "README.md", f"Euclidean algorithm, {proved['main']:.1f} % without them"
    yield PAGE, f"knows the divisor in {right['main']:.0f} % of the pairs"
    yield PAGE, f"and proves it in {proved['main']:.1f} %; with them it proves"
    yield PAGE, f"proves {proved['annotated']:.1f} % ({interval('annotated − main')})"
    yield PAGE, f"and knows it in {right['annotated']:.0f} %"
    yield (
        PAGE,
        f"{proved['main']:.1f} to {proved['feedback']:.1f} % ({interval('feedback − main')})",
    )
    pair = "annotated_feedback − annotated"
    yield (
        PAGE,
        f"{proved['annotated']:.1f} to {proved['annotated_feedback']:.1f} % ({interval(pair)})",
    )
    yield PAGE, f"annotated training proves {proved['few']:.1f} %"
    yield PAGE, f"{proved['shifted']:.1f} % ({interval('shifted − few')})"
    yield PAGE, f"in few in {right['few']:.0f} %, {right['few'] / proved['few']:.0f} times as often"


@pytest.mark.parametrize(("file", "sentence"), sentences())
def test_figures_of_the_proving_study_agree_with_the_data(file, sentence):
    assert sentence in text_of(file)
