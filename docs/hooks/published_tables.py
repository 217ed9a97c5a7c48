"""MkDocs hook that adds the tables of the JSON files next to pages of results."""

from __future__ import annotations

from pathlib import Path

from mkdocs.structure.pages import Page

from ratchet.reports.comparison.files import FURTHER
from ratchet.reports.comparison.published import read_published


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Replace the line that stands for them in a page with only its main table."""
    source = page.file.abs_src_path
    if source is None or FURTHER not in markdown:
        return markdown
    return markdown.replace(
        FURTHER, "\n".join(read_published(Path(source).with_suffix(".json")).tables)
    )
