"""The page on debaters: extremes over its many cells, and rank correlations."""

import re
from pathlib import Path

import pytest
from scipy.stats import spearmanr

from ratchet.reports.claims import compute, find_cell
from ratchet.reports.comparison.published import read_published

PAGE = Path(__file__).parents[1] / "docs" / "results" / "debaters.md"
DATA, TEXT = read_published(PAGE.with_suffix(".json")), PAGE.read_text()
FROZEN, LEARNING = (
    [
        (f"{game}{trainer}{judge}", f"{game}{judge}_untrained", f"{game}_untrained")
        for trainer in ("", "_ei", "_dpo")
        for game in ("main", "open_consultancy", "debate", "open_debate", "proposer_critic")
    ]
    for judge in ("", "_judge_learns")
)
"""The arms after and before training, and before training with a frozen judge."""
VERIFIES = "mean(score('{0}', 'test/test_verification'))"


def values(formula, cells):
    return {each: compute(each, DATA) for cell in cells for each in [formula.format(*cell)]}


@pytest.mark.parametrize(
    ("formula", "cells", "figure"),
    [
        ("mean({0})", FROZEN, "= {low} -->"),
        ("mean({0} - {1})", LEARNING, "span({low}, {high})"),
        ("mean({0} - {2})", LEARNING, "= {high} -->"),
        ("mean({0} - {2})", LEARNING, "-100 * {low} -->"),
        ("mean(score('{0}', 'test/test_trust'))", FROZEN, "span({low}, {high})"),
        ("mean(score('{0}', 'test/test_trust'))", LEARNING, "span({low}, {high})"),
        ("mean({0} - score('{0}', 'test/test_true_arguments'))", LEARNING, "= {high} -->"),
        (VERIFIES, FROZEN + LEARNING, "= {high} -->"),
    ],
)
def test_a_figure_is_the_lowest_or_highest_of_cells(formula, cells, figure):
    found = values(formula, cells)
    assert figure.format(low=min(found, key=found.get), high=max(found, key=found.get)) in TEXT


def test_what_is_said_of_all_cells():
    assert sum(gap > 0 for gap in values("mean({0} - {2})", LEARNING).values()) == 9
    pairs = [f"{a} − {b}" for a, b, _ in FROZEN if a.startswith(("debate", "open_"))]
    assert max(find_cell(DATA.tables, pair, "corrected p") for pair in pairs) == "0.016"
    rises = compute("main_ei > main_untrained", DATA)
    assert [*filter(rises.get, rises)] == [106, 107]


def test_rank_correlations():
    advance = "mean(score('{1}', 'test/test_true_arguments') - {1})"
    written = re.findall(r"−?\d\.\d\d", TEXT.partition("The rank corr")[2].partition("**")[0])
    for cells, count in ((FROZEN + LEARNING, 7), (FROZEN, 4), (LEARNING, 3)):
        change, verifies, ahead = (
            [compute(formula.format(*cell), DATA) for cell in cells]
            for formula in ("mean({0} - {1})", VERIFIES, advance)
        )
        assert len({round(each, 8) for each in ahead}) == count
        product = [a * b for a, b in zip(ahead, verifies, strict=True)]
        for predictor in (verifies, ahead, product)[: 3 if count == 7 else 2]:
            rank = f"{spearmanr(predictor, change).statistic:.2f}".replace("-", "−")
            assert rank == written.pop(0)
    assert not written
