"""Figures in README and documentation equal their formulas."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.reports.figures import check_document

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
DOCUMENTS = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "<!-- = " in path.read_text() and path.name != "studies.md"
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_figures_equal_their_formulas(document):
    wrong = [str(each) for each in check_document(document, RESULTS) if not each.is_right]
    assert wrong == []
