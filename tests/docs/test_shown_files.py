"""Pages contain the files that they show, also where nothing renders them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.shown_files import COMMAND, pages, shown_files, with_current_files

ROOT = Path(__file__).parents[2]
PAGE = """# Title
```python title="examples/one.py"
{}```
"""


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_equal_their_files(page: Path) -> None:
    text = page.read_text("utf-8")
    if with_current_files(text) != text:
        pytest.fail(f"{page.relative_to(ROOT)}: a block differs from its file. Run: {COMMAND}")


def test_every_example_is_shown_or_linked() -> None:
    texts = [page.read_text("utf-8") for page in pages()]
    assert not [text for text in texts if "--8<" in text], "invisible where nothing renders it"
    shown = {path for text in texts for path in shown_files(text)}
    linked = {path for text in texts for path in re.findall(r"\]\([./]*(examples/[\w/.]+)\)", text)}
    examples = {str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.py")}
    assert examples - shown - linked == set()
    assert {path for path in shown | linked if not (ROOT / path).exists()} == set()


def test_a_block_is_replaced_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "one.py").write_text("print(1)\n\n\nprint(2)\n")
    current = with_current_files(PAGE.format("print(0)\n"), tmp_path)
    assert current == PAGE.format("print(1)\n\n\nprint(2)\n")
    assert with_current_files(PAGE.format(""), tmp_path) == current
    assert with_current_files(current, tmp_path) == current


def test_files_that_cannot_be_shown_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"examples/one\.py, which is no file"):
        with_current_files(PAGE.format(""), tmp_path)
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "one.py").write_text('"""\n```\nratchet\n```\n"""\n')
    with pytest.raises(ValueError, match="contains ```"):
        with_current_files(PAGE.format(""), tmp_path)
