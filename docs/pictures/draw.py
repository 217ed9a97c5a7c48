"""Draws the pictures of the architecture page: `python docs/pictures/draw.py`.

Boxes bring their own ground and text outside them is grey, so that both read well on a light page
and on a dark one.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).parent
GREY = "#7d8894"
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
TEAL, ORANGE, BLUE, PLAIN = "#cfe9e4", "#fbdcc4", "#d5e2f4", "#eceff2"


def box(x: float, y: float, w: float, h: float, fill: str, lines: list[str]) -> str:
    """Draw a box whose first line is its title."""
    parts = [f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6" fill="{fill}"/>']
    top = y + h / 2 - (len(lines) - 1) * 8.5 + 5
    for index, line in enumerate(lines):
        weight = ' font-weight="600"' if index == 0 else ' fill="#46525e"'
        size = 14 if index == 0 else 12.5
        parts.append(
            f'<text x="{x + 14}" y="{top + index * 18:g}" font-size="{size}"{weight}>'
            f"{escape(line)}</text>"
        )
    return "".join(parts)


def note(x: float, y: float, text: str, anchor: str = "start") -> str:
    """Write a grey remark."""
    return (
        f'<text x="{x}" y="{y}" font-size="12.5" fill="{GREY}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def arrow(*points: tuple[float, float]) -> str:
    """Draw a line with a head."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{GREY}" stroke-width="1.6"'
        ' marker-end="url(#head)"/>'
    )


def bracket(x: float, top: float, bottom: float, lines: list[str]) -> str:
    """Draw a line next to boxes, with a label that applies to them."""
    path = f"M{x - 8} {top} h8 V{bottom} h-8"
    middle = (top + bottom) / 2 - (len(lines) - 1) * 9 + 4
    texts = "".join(note(x + 10, middle + i * 18, line) for i, line in enumerate(lines))
    return f'<path d="{path}" fill="none" stroke="{GREY}" stroke-width="1.6"/>{texts}'


def picture(name: str, width: int, height: int, title: str, parts: list[str]) -> None:
    """Write a picture."""
    head = (
        f'<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        f' orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{GREY}"/></marker>'
    )
    (HERE / name).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="{FONT}" fill="#1d252c" role="img">\n'
        f"<title>{escape(title)}</title>\n<defs>{head}</defs>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def layers() -> None:
    """Draw the packages from top to bottom, and the layers inside ``ratchet``."""
    tops = [
        ("deployments", "where and when it runs", BLUE),
        ("flows", "the steps of an experiment and their order · command line", BLUE),
        ("tasks", "one step each: stored, cached, retried", BLUE),
        ("trainers", "how agents learn, by family", ORANGE),
    ]
    inside = [
        ("service", "the model service: APIs of OpenAI and Tinker, jobs, training sessions"),
        ("reports · analysis", "pages, comparisons, judges"),
        ("experiment_files", "experiments as YAML, overrides, base runs"),
        ("scenarios", "one package per game; none imports another"),
        ("games", "matches of several seats, for all kinds of agents"),
        ("agents", "networks and heads"),
        ("language_models", "client, journal, prices, jobs, engines: no game, no trainer"),
        ("protocols", "turns, observations and rewards"),
        ("parameters", "everything that affects results"),
        ("tracking", "run folder, metrics, mirrors such as MLflow"),
        ("fast", "second implementations of three methods, measured"),
        ("algorithms · models", "each formula once; small Llama, LoRA, optimizers"),
        ("rollouts · store · statistics", "values and their storage"),
        ("registry · errors · seeding", "infrastructure"),
    ]
    parts, y = [], 10.0
    for name, what, fill in tops:
        parts.append(box(10, y, 520, 46, fill, [name, what]))
        y += 54
    begin = y
    height = 34 + len(inside) * 50 + 4
    parts.append(f'<rect x="10" y="{y}" width="520" height="{height}" rx="6" fill="{TEAL}"/>')
    parts.append(f'<text x="24" y="{y + 23}" font-size="14" font-weight="600">ratchet</text>')
    tracking = 0.0
    for index, (name, what) in enumerate(inside):
        top = begin + 34 + index * 50
        parts.append(box(24, top, 492, 44, "#f6fbfa", [name, what]))
        tracking = top + 26 if name == "tracking" else tracking
    parts.append(bracket(556, 10, 164, ["import Prefect;", "packages below don't"]))
    parts.append(bracket(556, 172, begin + height, ["work without", "Prefect and MLflow"]))
    parts.append(note(566, tracking, "only this imports MLflow"))
    end = begin + height
    parts.append(arrow((770, 20), (770, end - 10)))
    parts.append(note(760, 24, "imports go down", "end"))
    picture("layers.svg", 790, int(end + 10), "Package layers", parts)


STEPS = [
    (
        PLAIN,
        [
            "Key",
            "SHA-256 of stage, iteration, the parameters it reads,",
            "keys of its inputs, code fingerprint",
        ],
    ),
    (PLAIN, ["Look-up in the store", "files are checked against their SHA-256"]),
    (TEAL, ["Claim", "one process works, others wait (flock)"]),
    (
        ORANGE,
        [
            "Work",
            "generators from (seed, stage, iteration, purpose,",
            "agent); files into a work folder",
        ],
    ),
    (TEAL, ["Commit", "flushed to disk, then renamed: complete or absent"]),
    (
        BLUE,
        [
            "Recorded",
            "manifest.json and metrics.jsonl of the run,",
            "Prefect's state, MLflow; each once",
        ],
    ),
]
"""Of a stage's life: the box's colour, its name and what is done."""


def life() -> None:
    """Draw a stage's life, from its key to its place in the run's folder."""
    x, w = 20, 360
    parts, y, tops = [], 14.0, []
    for fill, lines in STEPS:
        height = 22 + 18 * len(lines)
        parts.append(box(x, y, w, height, fill, lines))
        tops.append((y, height))
        y += height + 34
    for (top, height), (below, _) in itertools.pairwise(tops):
        parts.append(arrow((x + w / 2, top + height + 3), (x + w / 2, below - 3)))
    middle = [top + height / 2 for top, height in tops]
    parts.append(note(x + w / 2 + 10, tops[2][0] - 13, "missing, or damaged and quarantined"))
    right = 640
    parts.append(
        arrow(
            (x + w + 3, middle[1]), (right, middle[1]), (right, middle[5]), (x + w + 4, middle[5])
        )
    )
    parts.append(note(x + w + 14, middle[1] - 8, "hit: state “Cached”, no work"))
    parts.append(arrow((x + w + 3, middle[2]), (right - 6, middle[2])))
    parts.append(note(x + w + 14, middle[2] - 8, "computed by another process"))
    parts.append(note(x + w + 14, middle[3] - 4, "killed here: an abandoned work"))
    parts.append(note(x + w + 14, middle[3] + 14, "folder remains; computed again"))
    parts.append(note(x + w + 14, middle[4] - 4, "killed after the rename:"))
    parts.append(note(x + w + 14, middle[4] + 14, "a hit in the next run"))
    picture("stage.svg", 680, int(tops[5][0] + tops[5][1] + 14), "A stage's life", parts)


if __name__ == "__main__":
    layers()
    life()
