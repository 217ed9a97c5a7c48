"""Claims about published results: expressions that are true or false of a page's data.

``mean(adp) - mean(main) < 0`` compares the mean scores of two arms. A name is an arm: its score in
the page's main metric for each seed. Arithmetic and comparisons of arms are by seed.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import StatisticsError
from typing import TypeAlias

from ratchet.errors import DataError, ParameterError, nearest
from ratchet.reports.comparison.published import Published, PublishedRun, read_published
from ratchet.reports.tables import show
from ratchet.statistics import interquartile_mean, stratified_interval

Scores: TypeAlias = Mapping[int, float]
"""Seed → score, or whether a comparison holds for this seed (1 or 0)."""
Value: TypeAlias = float | bool | str | Scores
_MAX_LENGTH = 1000


@dataclass(frozen=True)
class Claim:
    """A claim, whether it holds, and the numbers that it compares."""

    text: str
    holds: bool
    compared: Sequence[float]

    def __str__(self) -> str:
        numbers = ", ".join(f"{number:.6g}" for number in self.compared)
        return f"{self.text} ({numbers})" if numbers else self.text


def check_claims(claims: Sequence[str], data: Path, attacks: Path | None = None) -> list[Claim]:
    """Evaluate claims against a page's ``.json`` file and that of its attacks, if any.

    Errors as :func:`evaluate`.
    """
    if not claims:
        return []
    published = read_published(data)
    attacked = read_attacks(attacks, published) if attacks is not None and attacks.exists() else {}
    return [evaluate(claim, published, attacked) for claim in claims]


def read_attacks(file: Path, published: Published) -> dict[str, Scores]:
    """Return the worst results under attack by arm and seed, as `ratchet exploit` wrote them."""
    try:
        (table,) = json.loads(file.read_bytes())["tables"]
        rows = [(row["run_id"], row["arm"], float(row["worst"]["value"])) for row in table["rows"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file}: expected the output of `ratchet exploit --json`: {error}"
        ) from error
    seeds = {run.run: run.seed for run in published.runs}
    attacked: dict[str, dict[int, float]] = {}
    for run_id, arm, worst in rows:
        if run_id in seeds:
            attacked.setdefault(arm, {})[seeds[run_id]] = worst
    return dict(attacked)


def compute(
    formula: str, published: Published, attacked: Mapping[str, Scores] | None = None
) -> Value:
    """Return the value of a formula; parameters and errors as :func:`evaluate`."""
    return _compute("formula", formula, published, attacked)[0]


def evaluate(
    claim: str, published: Published, attacked: Mapping[str, Scores] | None = None
) -> Claim:
    """Evaluate one claim; ``attacked`` has the results under attack, by arm.

    Raises ParameterError if it is no expression of arms, numbers and the functions below, or is
    neither true nor false.
    """
    value, compared = _compute("claim", claim, published, attacked)
    if not isinstance(value, bool):
        raise ParameterError(
            f"claim {claim!r}: expected true or false, e.g. mean(a) > 0.5; arms are compared by"
            " seed: use all(…), any(…) or count(…)"
        )
    return Claim(claim, value, compared)


def _compute(
    kind: str, text: str, published: Published, attacked: Mapping[str, Scores] | None
) -> tuple[Value, tuple[float, ...]]:
    """Return the value of an expression, and the numbers that it compares."""
    try:
        if len(text) > _MAX_LENGTH:
            raise ParameterError(f"expected at most {_MAX_LENGTH} characters")
        evaluation = _Evaluation(published, attacked or {})
        value = evaluation.value(ast.parse(text, mode="eval").body)
    except (ParameterError, SyntaxError, ArithmeticError, StatisticsError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ParameterError(f"{kind} {text!r}: {reason}") from error
    return value, tuple(evaluation.compared)


_OPERATORS: Mapping[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: Mapping[type[ast.AST], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: lambda one, two: math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-12),
    ast.NotEq: lambda one, two: not math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-12),
}
_OF_SCORES: Mapping[str, Callable[[list[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "iqm": lambda scores: float(interquartile_mean(scores)),
    "min": min,
    "max": max,
    "stdev": statistics.stdev,
    "count": lambda scores: sum(map(bool, scores)),
    "all": all,
    "any": any,
}
_OF_NUMBERS: Mapping[str, Callable[..., float]] = {
    "abs": abs,
    "round": lambda number, digits=0: round(number, int(digits)),
}
_FUNCTIONS = [*_OF_SCORES, *_OF_NUMBERS, "interval", "span", "score", "used", "attacked", "cell"]


class _Evaluation:
    """Evaluates the nodes of an expression; ``compared`` collects the compared numbers."""

    def __init__(self, published: Published, attacked: Mapping[str, Scores]) -> None:
        self._attacked = attacked
        self._tables = published.tables
        self._runs: dict[str, list[PublishedRun]] = {}
        for run in published.runs:
            self._runs.setdefault(_label(run), []).append(run)
        self.compared: list[float] = []

    def value(self, node: ast.AST) -> Value:
        """Return the value of a node."""
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return value
            case ast.Name(id=name):
                return self._score(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _elementwise(operator.mul, -1.0, self.value(operand))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._truth(operand)
            case ast.BoolOp(op=ast.And(), values=values):
                return all([self._truth(each) for each in values])
            case ast.BoolOp(op=ast.Or(), values=values):
                return any([self._truth(each) for each in values])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _elementwise(_OPERATORS[type(op)], self.value(left), self.value(right))
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compare(left, ops, others)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._call(name, [self.value(each) for each in args])
        raise ParameterError(
            f"got {ast.unparse(node)!r}, expected arms, numbers, + - * /, comparisons, and, or,"
            f" not, and {', '.join(_FUNCTIONS)}"
        )

    def _truth(self, node: ast.AST) -> bool:
        value = self.value(node)
        if not isinstance(value, bool):
            raise ParameterError(f"got {ast.unparse(node)!r}, expected a comparison")
        return value

    def _compare(self, left: ast.AST, ops: Sequence[ast.cmpop], others: Sequence[ast.AST]) -> Value:
        values = [self.value(each) for each in (left, *others)]
        self.compared += [each for each in values if isinstance(each, float | int)]
        results = []
        for op, one, two in zip(ops, values[:-1], values[1:], strict=True):
            if type(op) not in _COMPARISONS:
                raise ParameterError("expected one of the comparisons < <= > >= == !=")
            results.append(_elementwise(_COMPARISONS[type(op)], one, two))
        if len(results) == 1:
            return results[0]
        if any(isinstance(each, Mapping) for each in results):
            raise ParameterError("expected one comparison of arms at a time")
        return all(results)

    def _call(self, name: str, args: Sequence[Value]) -> Value:
        if name in _OF_SCORES and len(args) == 1 and isinstance(args[0], Mapping):
            return _OF_SCORES[name](list(args[0].values()))
        if name == "interval" and len(args) == 1 and isinstance(args[0], Mapping):
            estimate = stratified_interval([list(args[0].values())], interquartile_mean)
            return {0: estimate.low, 1: estimate.high}
        if name in _OF_NUMBERS and args and all(isinstance(each, float | int) for each in args):
            return _OF_NUMBERS[name](*args)
        numbers = [float(each) for each in args if isinstance(each, float | int)]
        if name == "span" and len(numbers) == len(args) > 1:
            return dict(enumerate(numbers))
        if name == "score" and 1 <= len(args) <= 2 and all(isinstance(each, str) for each in args):
            return self._score(*map(str, args))
        if name == "cell" and 2 <= len(args) <= 3 and all(isinstance(each, str) for each in args):
            return find_cell(self._tables, *map(str, args))
        if name == "used" and len(args) == 2 and all(isinstance(each, str) for each in args):
            return self._used(*map(str, args))
        if name == "attacked" and len(args) == 1 and args[0] in self._attacked:
            return self._attacked[str(args[0])]
        if name not in _FUNCTIONS:
            raise ParameterError(f"unknown function {name!r}.{nearest(name, _FUNCTIONS)}")
        raise ParameterError(f"{name}: unsuitable arguments, expected {_form(name)}")

    def _used(self, arm: str, resource: str) -> Scores:
        """Return the frames, tokens or labels that the training of an arm used, by seed."""
        runs = self._runs_of(arm)
        known = {name for run in runs for stage in run.used.values() for name in stage}
        if resource not in known:
            raise ParameterError(f"used: got {resource!r}, expected one of {sorted(known)}")
        return {
            run.seed: sum(stage.get(resource, 0.0) for stage in run.used.values()) for run in runs
        }

    def _runs_of(self, arm: str) -> list[PublishedRun]:
        if arm not in self._runs:
            raise ParameterError(
                f"unknown arm {arm!r}, expected one of {', '.join(self._runs)}."
                f"{nearest(arm, self._runs)}"
            )
        return self._runs[arm]

    def _score(self, arm: str, metric: str | None = None) -> Scores:
        """Return an arm's scores by seed, of its first metric by default."""
        scores = {}
        for run in self._runs_of(arm):
            name = metric or next(iter(run.scores), "")
            if name not in run.scores:
                raise ParameterError(
                    f"arm {arm!r} has no metric {name!r}, expected one of"
                    f" {', '.join(run.scores)}.{nearest(name, run.scores)}"
                )
            scores[run.seed] = run.scores[name]
        return scores


def find_cell(tables: Sequence[str], row: str, column: str, heading: str = "") -> str:
    """Return a cell of the first of a page's further tables with this row and column.

    ``tables`` are lines of Markdown. With a ``heading``, the table is below a heading that starts
    with it, regardless of case.
    """
    section, columns = "", list[str]()
    for line in tables:
        if line.startswith("#"):
            section = line.lstrip("# ")
        if not line.startswith("|"):
            columns = []
            continue
        cells = [cell.strip().strip("*") for cell in line.strip("|").split("|")]
        columns = columns or cells
        is_below = section.lower().startswith(heading.lower())
        if cells[0] == row and column in columns and is_below:
            return cells[columns.index(column)]
    below = f" below {heading!r}" if heading else ""
    raise ParameterError(f"no table{below} has the row {row!r} and the column {column!r}")


def _form(name: str) -> str:
    """Return a call of a function, as an example."""
    if name == "score":
        return "score('ARM', 'METRIC')"
    if name == "used":
        return "used('ARM', 'tokens'), or frames or labels"
    if name == "span":
        return "span(NUMBER, NUMBER, …)"
    if name == "cell":
        return "cell('ROW', 'COLUMN') or cell('ROW', 'COLUMN', 'HEADING')"
    if name == "attacked":
        return "attacked('ARM'), an arm in the data of the attacks"
    return f"{name}(ARM)" if name in (*_OF_SCORES, "interval") else f"{name}(NUMBER)"


def _label(run: PublishedRun) -> str:
    """Return the name of a run's group: its arm, with differing parameters if there are some."""
    values = (f"{path.rpartition('.')[2]}={show(each)}" for path, each in run.differing.items())
    return " · ".join([run.arm, *values])


def _elementwise(function: Callable[[float, float], float], one: Value, two: Value) -> Value:
    """Apply a function to numbers, or by seed if a value is an arm's scores."""
    if isinstance(one, str) or isinstance(two, str):
        raise ParameterError("expected numbers and arms, got text")
    if not isinstance(one, Mapping) and not isinstance(two, Mapping):
        return function(one, two)
    seeds = _shared_seeds(each for each in (one, two) if isinstance(each, Mapping))
    first, second = (
        each if isinstance(each, Mapping) else dict.fromkeys(seeds, float(each))
        for each in (one, two)
    )
    return {seed: function(first[seed], second[seed]) for seed in seeds}


def _shared_seeds(arms: Iterable[Scores]) -> list[int]:
    seeds = [sorted(each) for each in arms]
    if any(each != seeds[0] for each in seeds):
        raise ParameterError("expected arms with the same seeds")
    return seeds[0]
