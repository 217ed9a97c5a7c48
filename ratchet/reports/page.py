"""Templates, figures and scripts shared by all report pages."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
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
    """Serialise the figures, escaped for a script element."""
    text = json.dumps([figure.to_dict() for figure in figures], separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


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
