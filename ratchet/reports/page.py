"""Templates, figures and scripts shared by all report pages."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.reports.plots import Figure
from ratchet.tracking.files import write_atomically

if TYPE_CHECKING:
    import jinja2


@functools.cache  # compiles templates once per process
def page_environment() -> jinja2.Environment:
    """Return this folder's template environment with autoescaping and strict names."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def figures_json(figures: Sequence[Figure]) -> str:
    """Serialise the figures, escaped for a script element; non-finite numbers become null."""
    plain = json.loads(json.dumps([f.to_dict() for f in figures]), parse_constant=lambda _: None)
    text = json.dumps(plain, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def markdown_html(text: str, pictures: Mapping[str, str]) -> str:
    """Convert Markdown to HTML with inlined SVG pictures by path; HTML in the text is escaped."""
    from markdown_it import MarkdownIt

    converter = MarkdownIt("commonmark", {"html": False}).enable("table")
    converter.add_render_rule("table_open", lambda *_: '<div class="scroll shown"><table>\n')
    converter.add_render_rule("table_close", lambda *_: "</table></div>\n")
    converted: str = converter.render(text)
    for path, svg in pictures.items():
        content = base64.b64encode(svg.encode()).decode()
        converted = converted.replace(f'src="{path}"', f'src="data:image/svg+xml;base64,{content}"')
    return converted


@functools.cache
def plotly_script() -> str:
    """Return the script element that contains plotly.js (4.5 MiB)."""
    from plotly.offline import get_plotlyjs

    return f"<script>{get_plotlyjs()}</script>"


def shared_plotly_script(runs: Path) -> str:
    """Return a script element that links the copy of plotly.js next to the run folders.

    The copy is written if it is missing. Pages are in folders of ``runs``; copies of a page for
    other locations inline the script (:func:`ratchet.tracking.files.standalone_copy`).
    """
    from plotly.offline import get_plotlyjs, get_plotlyjs_version

    path = runs / f"plotly-{get_plotlyjs_version()}.min.js"
    if not path.exists():
        write_atomically(path, get_plotlyjs())
    return f'<script src="../{path.name}"></script>'
