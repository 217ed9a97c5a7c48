"""The site shows the tables of the JSON files next to pages of results."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("mkdocs")

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
sys.path.insert(0, str(ROOT / "docs" / "hooks"))

from published_tables import on_page_markdown  # noqa: E402 -- importable after the line above

from ratchet.reports.comparison.files import FURTHER  # noqa: E402
from ratchet.reports.comparison.published import read_published  # noqa: E402


def shown(path: Path) -> str:
    page = SimpleNamespace(file=SimpleNamespace(abs_src_path=str(path)))
    return on_page_markdown(path.read_text(), page=page)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(RESULTS.glob("**/*.md")), ids=lambda path: path.stem)
def test_each_page_with_data_has_its_further_tables_once(path):
    data = path.with_suffix(".json")
    if not data.exists():
        assert shown(path) == path.read_text()
        return
    tables = read_published(data).tables
    assert path.read_text().count(FURTHER) == 1
    assert "\n".join(tables) in shown(path)
    assert FURTHER not in shown(path)
    assert "## Reproducing" in tables
    assert "## Reproducing" not in path.read_text()
