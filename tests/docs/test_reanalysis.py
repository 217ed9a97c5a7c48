"""The reanalysis of published studies agrees with their data and with scipy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "hooks"))

import reanalysis  # noqa: E402 -- importable after the line above


def accuracies(study: str, arm: str) -> np.ndarray:
    runs = json.loads((ROOT / "docs" / "results" / f"{study}.json").read_text())["runs"]
    ours = sorted((run for run in runs if run["arm"] == arm), key=lambda run: run["seed"])
    return np.array([run["tests"]["test"]["accuracy"] for run in ours])


def test_pairs_of_one_seed_have_wilcoxons_test_and_the_iqm_of_their_differences():
    rows = {row.pair: row for row in reanalysis.rows_of("zero_knowledge")}
    gaps = accuracies("zero_knowledge", "share_10") - accuracies("zero_knowledge", "plain")
    assert rows["share_10 − plain"].gap.value == pytest.approx(stats.trim_mean(gaps, 0.25))
    alone = stats.wilcoxon(gaps, zero_method="pratt", method="exact").pvalue
    assert rows["share_10 − plain"].new >= alone - 1e-9


def test_the_page_has_every_published_pair_and_marks_other_verdicts():
    text = reanalysis.page()
    rows = [line for line in text.splitlines() if line.startswith("| ") and " − " in line]
    published = sum(
        len(reanalysis.rows_of(path.stem)) for path in reanalysis.RESULTS.glob("*.json")
    )
    assert f"Of {len(rows)} pairs" in text
    assert len(rows) == published
    for line in rows:
        pair, _, first, *_, now = (cell.strip() for cell in line.strip("|").split("|"))
        verdicts = {float(p.removeprefix("< ")) <= 0.05 for p in (first, now)}
        assert pair.startswith("**") == (len(verdicts) == 2)
