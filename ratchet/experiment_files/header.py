"""The comment at the top of an experiment file."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path


def comment_lines(file: Path) -> list[str]:
    """Return the lines of the comment at the top of a file, without ``#``."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("#") for line in takewhile(lambda each: each[:1] == "#", lines)]


def first_paragraph(comment: list[str]) -> str:
    """Return a comment's text up to an empty line or an indented command, on one line."""
    paragraph = takewhile(lambda each: each.strip() and not each.startswith("   "), comment)
    return " ".join(line.strip() for line in paragraph)
