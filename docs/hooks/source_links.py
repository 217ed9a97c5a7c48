"""MkDocs hook that checks links to files outside ``docs/`` and points them to the repository.

The same link then works in the repository and on the site.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
_OUTWARD = re.compile(r"\]\((\.\./[^)#\s]+)")
_LOGGER = logging.getLogger("mkdocs.hooks.source_links")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Point links out of ``docs/`` to the repository; warn about missing files."""
    folder = Path("docs") / Path(page.file.src_uri).parent

    def lead(match: re.Match[str]) -> str:
        path = os.path.normpath(folder / match[1])
        if path.startswith("docs/"):
            return match[0]
        if not (ROOT / path).exists():
            _LOGGER.warning("%s: link to missing file %s", page.file.src_uri, path)
        return f"]({config.extra['sources']}{path}"

    return _OUTWARD.sub(lead, markdown)
