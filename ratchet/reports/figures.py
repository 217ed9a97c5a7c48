"""Figures in a document, each followed by the formula that it equals, in a comment.

``94.4 %<!-- = mean(main) -->`` is the mean score of an arm, see :mod:`ratchet.reports.claims`. A
range, ``58.3 to 69.7 %<!-- = main -->``, are the lowest and the highest score of the seeds. Shares
are written in percent or points. ``<!-- = PAGE: FORMULA -->`` refers to the data of another page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ratchet.errors import ParameterError
from ratchet.reports.claims import Scores, Value, compute, read_attacks
from ratchet.reports.comparison.published import Published, read_published

Compute = Callable[[str, str], Value]
"""Returns the value of a formula, given the name of a page ("" for the document's own) and it."""

_NUMBER = r"[−+]?\d[\d,]*(?:\.\d+)?"
_ROUNDING = 1e-9
_FIGURE = re.compile(
    rf"(?P<figure>(?:{_NUMBER}\sto\s|< )?{_NUMBER})(?P<unit>\s%|\spoints?)?"
    r"<!-- = (?:(?P<page>[\w/]+): )?(?P<formula>.*?) -->",
    re.DOTALL,
)
_COMMENT = re.compile(r"<!-- = ")


@dataclass(frozen=True)
class Figure:
    """A figure as written, and as its formula gives it."""

    line: int
    formula: str
    written: str
    computed: str

    @property
    def is_right(self) -> bool:
        """Whether both are the same."""
        return self.written == self.computed

    def __str__(self) -> str:
        return f"line {self.line}: got {self.written}, expected {self.computed} = {self.formula}"


def check_document(document: Path, results: Path) -> list[Figure]:
    """Compute the figures of a document from the pages' data in a folder of results.

    Without the name of a page, a formula refers to the page of the document's name. Errors as
    :func:`check_figures`, and DataError for a page without data.
    """

    @cache
    def data(page: str) -> tuple[Published, dict[str, Scores]]:
        published = read_published(results / f"{page}.json")
        attacks = results / "attacks" / f"{page}.json"
        return published, read_attacks(attacks, published) if attacks.exists() else {}

    path = document.with_suffix("")
    name = str(path.relative_to(results)) if path.is_relative_to(results) else path.name
    return check_figures(
        document.read_text(encoding="utf-8"),
        lambda page, formula: compute(formula, *data(page or name)),
    )


def check_figures(text: str, value_of: Compute) -> list[Figure]:
    """Compute all figures of a document that have a formula.

    Raises ParameterError, with the line, for a formula that is invalid or follows no figure.
    """
    figures = list(_figures(text, value_of))
    if len(figures) != len(_COMMENT.findall(text)):
        lines = {figure.line for figure in figures}
        missing = [_line(text, each.start()) for each in _COMMENT.finditer(text)]
        raise ParameterError(
            f"formulas in the lines {sorted({*missing} - lines) or missing} follow no figure;"
            " expected a number, or a range such as 1.5 to 2.5, directly before <!-- = … -->"
        )
    return figures


def _figures(text: str, value_of: Compute) -> Iterator[Figure]:
    for match in _FIGURE.finditer(text):
        line, formula = _line(text, match.start("formula")), " ".join(match["formula"].split())
        written = " ".join(match["figure"].split())
        try:
            value = value_of(match["page"] or "", formula)
        except ParameterError as error:
            raise ParameterError(f"line {line}: {error}") from error
        yield Figure(line, formula, written, _written(value, written, bool(match["unit"])))


def _written(value: Value, like: str, is_share: bool) -> str:
    """Write a value with the count of numbers, the digits and the signs of a written figure."""
    if isinstance(value, str):
        value = value.strip("[]").replace(", ", " to ")
        return value if "+" in like else value.replace("+", "")
    numbers = re.findall(_NUMBER, like)
    if isinstance(value, Mapping):
        values = [min(value.values()), max(value.values())]
    else:
        values = [float(value)]
    if len(numbers) != len(values):
        return f"{len(values)} number{'s' * (len(values) > 1)}"
    scale = 100 if is_share else 1
    return " to ".join(
        _formatted(scale * each, number) for each, number in zip(values, numbers, strict=True)
    )


def _formatted(value: float, like: str) -> str:
    """Write a number like a written one: itself if it is the value rounded to its digits."""
    digits = len(like.partition(".")[2])
    written = float(like.replace(",", "").replace("−", "-"))
    if abs(value - written) <= 0.5 * 10**-digits + _ROUNDING:
        return like
    sign, comma = "+" if "+" in like else "", "," if "," in like else ""
    return f"{value:{sign}{comma}.{digits}f}".replace("-", "−")


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
