"""The gallery of experiments: a section for each file of ``experiments``, from its comment.

``gallery.yaml`` adds the group, the result with its source, the cost and the figure: a file
below ``docs``, or the values of a curve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
ENTRIES = Path(__file__).with_suffix(".yaml")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 440, 200, 48, 40
_COLOURS = ("#00897b", "#e8590c", "#3b6fb6")


@dataclass(frozen=True)
class Header:
    """The first paragraph of an experiment file's comment, and its first commands."""

    sentence: str
    command: str


def header(file: Path) -> Header:
    """Read the comment at the top of an experiment file.

    Raises
    ------
    ValueError
        If it lacks a sentence or a command.
    """
    lines = file.read_text(encoding="utf-8").splitlines()
    comment = [line.removeprefix("#") for line in takewhile(lambda each: each[:1] == "#", lines)]
    code = [line for line in comment if line.startswith("   ")]
    paragraph = takewhile(lambda each: each.strip() and not each.startswith("   "), comment)
    sentence = " ".join(line.strip() for line in paragraph)
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
    """Return group → name of an experiment → what the file does not contain."""
    found: dict[str, dict[str, Mapping[str, Any]]] = yaml.safe_load(ENTRIES.read_text())
    return found


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
            about = header(EXPERIMENTS / f"{name}.yaml")
            figure = f"gallery/{name}.svg" if "curve" in entry else entry.get("picture")
            yield f"\n### {name}\n\n{about.sentence}\n"
            if figure is not None:
                yield f"![{escape(entry['alt'])}]({figure}){{ .gallery loading=lazy }}\n"
            yield f"**Result.** {entry['result']}\n\n**Cost.** {entry['cost']}\n"
            yield f"```\n{about.command}\n```\n\n[{name}.yaml](../experiments/{name}.yaml)"


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
    values = [value for line in lines.values() for value in line]
    low, high, last = min(values), max(values), every * (max(map(len, lines.values())) - 1)
    across, up = (_WIDTH - _LEFT - 90) / last, (_HEIGHT - _BOTTOM - 30) / ((high - low) or 1)
    parts = [_text(4, 14, y), _text(_LEFT, _HEIGHT - 6, x)]
    parts += [_text(4, _HEIGHT - _BOTTOM + 4, f"{low:g}"), _text(4, 34, f"{high:g}")]
    parts += [
        _text(_LEFT, _HEIGHT - 24, "0"),
        _text(_LEFT + last * across - 12, _HEIGHT - 24, f"{last:g}"),
    ]
    bottom = _HEIGHT - _BOTTOM
    for (_, line), colour in zip(lines.items(), _COLOURS, strict=False):
        points = [
            f"{_LEFT + i * every * across:.1f},{bottom - (value - low) * up:.1f}"
            for i, value in enumerate(line)
        ]
        path = " ".join(points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    ends = sorted(zip(lines.items(), _COLOURS, strict=False), key=lambda each: each[0][1][-1])
    top = float(_HEIGHT)
    for (name, line), colour in ends:  # from below, without overlap
        top = min(top - 14, bottom - (line[-1] - low) * up + 4)
        parts.append(_text(_LEFT + last * across + 6, top, name, colour))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        f' font-family="system-ui, sans-serif" font-size="12">{"".join(parts)}</svg>\n'
    )


def _text(left: float, top: float, text: str, fill: str = "#7d8894") -> str:
    return f'<text x="{left:g}" y="{top:g}" fill="{fill}">{escape(text)}</text>'
