"""Blocks of code in pages, and the comments directly above them with instructions to run them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
_UNREAD = ("decisions", "reference", "results", "hooks")
"""Folders with pages that are generated, or that explain and instruct nothing."""
_BLOCK = re.compile(
    r"^(?P<notes>(?: *<!-- [^\n]* -->\n)*) *```(?P<info>[^\n`]*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_NOTE = re.compile(r"<!-- (.*?) -->")
_NOT_RUN = re.compile(r"not run: (\w+ \w+.*)")
_FOLDER = re.compile(r"run in: (\S+)")
_WRITE = re.compile(r"write: (\S+)")
_TOLERANCE = re.compile(r"numbers may differ by (\d+): (\w+ \w+.*)")


class BlockError(Exception):
    """A block has no language, or a comment above it cannot be read."""


@dataclass(frozen=True)
class Block:
    """A block of code in a page.

    Attributes
    ----------
    where
        Page and line.
    title
        Path of the file that the block shows; empty if it shows none.
    not_run
        Reason for which the block is not run; None if it is.
    written
        Name of the file that later blocks read, and into which the block is written.
    folder
        Folder in which the block is run.
    tolerance
        Largest difference of a printed number from the page's.
    """

    where: str
    language: str
    title: str
    text: str
    not_run: str | None = None
    written: str | None = None
    folder: str = "."
    tolerance: float = 0.0

    @property
    def is_code(self) -> bool:
        """Whether the block is run unless a comment prevents it."""
        is_shown = bool(self.title or self.written)
        return self.language in ("bash", "console", "python") and not is_shown


def pages() -> list[Path]:
    """Return README.md and the pages of docs/ that instruct readers."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    kept = [page for page in found if page.relative_to(ROOT).parts[1] not in _UNREAD]
    return [ROOT / "README.md", *kept]


def read_blocks(page: Path) -> list[Block]:
    """Return a page's blocks in order; BlockError if one cannot be read."""
    return parse_blocks(page.read_text("utf-8"), str(page.relative_to(ROOT)))


def parse_blocks(text: str, name: str) -> list[Block]:
    """Return the blocks of a page's text in order; BlockError if one cannot be read."""
    return [
        _block(match, f"{name}:{text.count(chr(10), 0, match.end('notes')) + 1}")
        for match in _BLOCK.finditer(text)
    ]


def _block(match: re.Match[str], where: str) -> Block:
    language, _, title = match["info"].partition(" ")
    if not re.fullmatch(r"\w+", language):
        raise BlockError(f"{where}: got no language. Write ```bash, ```console, ```text …")
    block = Block(
        where, language, title.removeprefix('title="').removesuffix('"'), dedent(match["text"])
    )
    for note in _NOTE.findall(match["notes"]):
        block = _with_note(block, note)
    return block


def _with_note(block: Block, note: str) -> Block:
    if found := _NOT_RUN.fullmatch(note):
        return replace(block, not_run=found[1])
    if found := _WRITE.fullmatch(note):
        return replace(block, written=found[1])
    if found := _FOLDER.fullmatch(note):
        return replace(block, folder=found[1])
    if found := _TOLERANCE.fullmatch(note):
        return replace(block, tolerance=float(found[1]))
    raise BlockError(
        f"{block.where}: got the comment {note!r}, expected 'not run: REASON', 'write: FILE',"
        " 'run in: FOLDER' or 'numbers may differ by NUMBER: REASON'."
    )
