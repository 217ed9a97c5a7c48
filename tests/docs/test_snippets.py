"""Snippets of pages run unchanged, and print the output in the pages.

Blocks that cannot run here carry a comment with the reason: ``<!-- not run: needs an API key -->``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, Block, BlockError, pages, parse_blocks, read_blocks
from tests.docs.comparison import difference

_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*\n)", re.MULTILINE)


def runnable(page: Path) -> list[Block]:
    """Return the blocks of code that are run."""
    return [block for block in read_blocks(page) if block.is_code and block.not_run is None]


def has_snippets(page: Path) -> bool:
    """Return whether a page has blocks that are run, or that cannot be read."""
    try:
        return bool(runnable(page))
    except BlockError:
        return True  # the tests report it


def test_blocks_that_are_not_run_are_listed_with_their_reasons() -> None:
    blocks = [block for page in pages() for block in read_blocks(page)]
    for block in blocks:
        if block.not_run is not None:
            print(f"{block.where}: {block.not_run}")  # noqa: T201 -- shown by `pytest -rP`
            assert block.is_code or block.language == "text", f"{block.where} is never run"
    assert any(block.not_run is not None for block in blocks)
    assert any(block.is_code and block.not_run is None for block in blocks)


def test_every_block_of_the_readme_is_run_or_says_why_not() -> None:
    for block in read_blocks(ROOT / "README.md"):
        assert block.is_code or block.written or block.language == "text", block.where


def test_the_readme_can_be_read_in_three_minutes() -> None:
    text = re.sub("<!--.*?-->", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(text.split()) <= 750


def test_every_output_follows_what_prints_it() -> None:
    for page in pages():
        code: Block | None = None
        for block in read_blocks(page):
            if block.is_code:
                code = block
            elif block.language == "text" and block.not_run is None:
                assert code is not None, f"{block.where}: nothing prints it"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```\nls\n```\n", "page:1: got no language"),
        ("\n<!-- not run: -->\n```bash\nls\n```\n", "page:3: got the comment 'not run:'"),
        ("<!-- not run: no -->\n```bash\nls\n```\n", "page:2: got the comment 'not run: no'"),
    ],
)
def test_blocks_need_a_language_and_reasons(text: str, error: str) -> None:
    with pytest.raises(BlockError, match=error):
        parse_blocks(text, "page")


def test_comments_above_a_block_are_read() -> None:
    text = "<!-- run in: examples -->\n<!-- numbers may differ by 5: a reason -->\n```bash\nls\n```"
    (block,) = parse_blocks(text, "page")
    assert (block.folder, block.tolerance, block.text) == ("examples", 5.0, "ls\n")


PRINTED = """Run demo-0123abcd
main · Training 3/9 1.5 it/s 3 s left
 arm    accuracy
 ───────────────
 main   91.94 %
Stages 3 computed in 2.5 s
Run /tmp/x/runs/demo-0123abcd
"""


@pytest.mark.parametrize(
    "shown",
    [
        PRINTED,
        "Run demo-ffffffff\narm accuracy\n─\nmain 91.9 %\n…\nRun runs/demo-ffffffff\n",
        "…\nStages 3 computed in 70 s\n",
        "main … %\nStages … computed in 1 min\n",
    ],
)
def test_ids_times_and_paths_may_differ(shown: str) -> None:
    assert difference(shown, PRINTED) is None


@pytest.mark.parametrize(
    "shown",
    [
        "main 91.8 %\n",  # a number
        "Stages 4 computed in 2.5 s\n",
        "Stages 3.0 computed in 2.5 s\n…\nmain 91.94 %\n",  # the order
        "Run demo-0123abcd\nmain 91.94 %\n",  # further lines
        "verifier 91.94 %\n",
    ],
)
def test_numbers_words_and_order_may_not_differ(shown: str) -> None:
    assert "the page" in (difference(shown, PRINTED) or "")


def test_a_tolerance_is_for_numbers_only() -> None:
    assert difference("main 89 %\n", PRINTED, tolerance=3) is None
    assert difference("main 88 %\n", PRINTED, tolerance=3) is not None
    assert difference("arm 91 %\n", PRINTED, tolerance=3) is not None
    assert difference("took 58 s\n", "took 1 min 3 s\n") is None


def snippet_pages() -> list[Any]:
    """Return the pages with snippets, in turn; those that need minutes are exhaustive."""
    long = {*(ROOT / "docs" / "guides").iterdir(), ROOT / "docs/tutorials/sweep_and_compare.md"}
    turn = pytest.mark.in_turn(2)
    return [
        pytest.param(page, id=page.stem, marks=pytest.mark.exhaustive if page in long else turn)
        for page in pages()
        if has_snippets(page)
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", snippet_pages())
def test_snippets_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    for name in ("examples", "experiments"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    printed: str | None = None
    for block in read_blocks(page):
        if block.written is not None:
            (tmp_path / block.written).write_text(block.text)
        elif block.is_code:
            printed = None if block.not_run is not None else _run(block, tmp_path)
        elif block.language == "text" and block.not_run is None and printed is not None:
            _compare(block, block.text, printed)


def _run(block: Block, workspace: Path) -> str:
    """Run a block, compare its output with that of a console block, and return the output."""
    if block.language == "python":
        return _execute(block, workspace, sys.executable, "-c", block.text)
    if block.language == "bash":
        return _execute(block, workspace, "bash", "-euo", "pipefail", "-c", block.text)
    _, *parts = _COMMAND.split(block.text)
    printed = ""
    for command, shown in zip(parts[::2], parts[1::2], strict=True):
        printed = _execute(block, workspace, "bash", "-euo", "pipefail", "-c", command)
        _compare(block, shown, printed)
    return printed


def _execute(block: Block, workspace: Path, *command: str) -> str:
    environment = {
        **os.environ,
        "COLUMNS": "120",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }
    done = subprocess.run(
        command,
        cwd=workspace / block.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{block.where} failed:\n{block.text}\n{done.stdout}"
    return done.stdout


def _compare(block: Block, shown: str, printed: str) -> None:
    found = difference(shown, printed, block.tolerance)
    assert found is None, f"{block.where}: the page shows other output:\n{found}"
