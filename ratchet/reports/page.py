"""What the pages of reports and of comparisons share: templates, figures, scripts."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.reports.plots import Figure

if TYPE_CHECKING:
    import jinja2


@functools.cache  # its templates are compiled once a process
def page_environment() -> jinja2.Environment:
    """Return the environment of this folder's templates: values are escaped, names checked."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def figures_json(figures: Sequence[Figure]) -> str:
    """Write the figures so that they can stand inside a script element."""
    text = json.dumps([figure.to_dict() for figure in figures], separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@functools.cache
def plotly_js() -> str:
    """Return the source of plotly.js."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
