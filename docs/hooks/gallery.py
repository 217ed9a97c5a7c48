"""The gallery of experiments: a section for each file of ``experiments``, from its comment.

``gallery.yaml`` adds the group, the result with its source, the cost and the figure: a file
below ``docs``, or the values of a curve.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from matplotlib import rc_context
from matplotlib.figure import Figure

from ratchet.experiment_files.header import comment_lines, first_paragraph

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
ENTRIES = Path(__file__).with_suffix(".yaml")
_COLOURS = ("#00897b", "#e8590c", "#3b6fb6")
_GREY = "#7d8894"
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gallery",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.handlelength": 1,
    "legend.labelcolor": _GREY,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), _GREY),
    **dict.fromkeys(("xtick.color", "ytick.color"), _GREY),
}


@dataclass(frozen=True)
class Header:
    """The first paragraph of an experiment file's comment, and its first commands."""

    sentence: str
    command: str


def header(file: Path) -> Header:
    """Read the comment at the top of an experiment file."""
    comment = comment_lines(file)
    code = [line for line in comment if line.startswith("   ")]
    sentence = first_paragraph(comment)
    start = comment.index(code[0]) if code else 0
    block = takewhile(lambda each: each.startswith("   "), comment[start:])
    command = "\n".join(line.removeprefix("   ") for line in block)
    if not sentence or not command:
        raise ValueError(
            f"{file}: got the comment {comment}, expected a sentence and then a command, indented"
            " by three spaces, at the top of the file."
        )
    return Header(sentence, command)


def entries() -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return group → name of an experiment → facts that its file lacks."""
    gallery: dict[str, dict[str, Mapping[str, Any]]] = yaml.safe_load(ENTRIES.read_text())
    return gallery


def page() -> str:
    """Return the page."""
    return "\n".join(_lines())


def figures() -> dict[str, str]:
    """Return path below ``docs`` → picture of each entry with a curve."""
    every = {name: entry for group in entries().values() for name, entry in group.items()}
    return {f"gallery/{n}.svg": curve(**e["curve"]) for n, e in every.items() if "curve" in e}


def _lines() -> Iterator[str]:
    yield "# Gallery\n"
    yield "The experiment files of the repository, each with result, cost and command. Costs are"
    yield "of one CPU core unless stated; *one run* is one training run with the file's seed."
    for group, experiments in entries().items():
        yield f"\n## {group}"
        for name, entry in experiments.items():
            file_header = header(EXPERIMENTS / f"{name}.yaml")
            figure = f"gallery/{name}.svg" if "curve" in entry else entry.get("picture")
            yield f"\n### {name}\n\n{file_header.sentence}\n"
            if figure is not None:
                yield f"![{escape(entry['alt'])}]({figure}){{ .gallery loading=lazy }}\n"
            yield f"**Result.** {entry['result']}\n\n**Cost.** {entry['cost']}\n"
            yield f"```\n{file_header.command}\n```\n\n[{name}.yaml](../experiments/{name}.yaml)"


def curve(x: str, y: str, every: float, lines: Mapping[str, list[float]]) -> str:
    """Draw lines through values at equal distances, from 0 on, as SVG.

    Parameters
    ----------
    x, y
        Titles of the axes.
    every
        Distance of the values on the x axis.
    lines
        Name → values.
    """
    with rc_context(_STYLE):
        figure = Figure(figsize=(6.1, 2.8), layout="constrained")  # shown as 440 x 200 pixels
        axes = figure.subplots()
        axes.set_prop_cycle(color=_COLOURS)
        for name, values in lines.items():
            axes.plot([every * i for i in range(len(values))], values, label=name)
        axes.set_xlabel(x)
        axes.set_title(y, loc="left")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        svg = io.StringIO()
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
    return svg.getvalue()
