"""The grid of a sweep: ``seed=0..4 interaction_protocol=nip,adp`` → every combination."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ratchet.errors import ParameterError
from ratchet.parameters.sweeps import SECTION, expand_values
from ratchet.parameters.yaml_files import parse_yaml

Grid = dict[str, list[Any]]


def read_grid(assignments: Iterable[str]) -> tuple[Grid, list[str]]:
    """Return what varies, dotted path → values, and the assignments of one value: overrides.

    Parameters
    ----------
    assignments
        ``a.b=VALUES``. Values are YAML with commas between them; ``0..4`` stands for the integers
        from 0 to 4. A value that is a list itself stands in brackets: ``[7,8],[9]`` are two. What
        begins with ``sweep.`` changes the file's section as it is.

    Raises
    ------
    ParameterError
        If an assignment has no ``=``, no values, the same value twice or a range that ends before
        it begins; if settings vary, which change no result; or a path stands there twice.
    """
    grid: Grid = {}
    overrides: list[str] = []
    seen: set[str] = set()
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        path = path.strip()
        if not equals or not all(path.split(".")):
            raise ParameterError(
                f"sweep: got {assignment!r}, expected a.b=VALUES, e.g. seed=0..4 or rl.lr=0.1,0.01."
            )
        if path in seen:
            raise ParameterError(f"sweep: {path} stands there twice; give all its values at once.")
        seen.add(path)
        if path.partition(".")[0] == SECTION:
            overrides.append(assignment)
            continue
        where = f"sweep: {path}"
        values = expand_values(where, parse_yaml(f"[{text}]", where))
        if len(values) == 1:
            overrides.append(assignment)
        elif path.partition(".")[0] in ("settings", "arms"):
            raise ParameterError(
                f"sweep: {path}: got {values!r}, expected a single value: settings change no"
                " result, and arms are changes of their own."
            )
        else:
            grid[path] = values
    return grid, overrides


def grid_points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the combinations of a grid, the last parameter changing fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def sample_points(grid: Mapping[str, Sequence[Any]], values: int) -> list[dict[str, Any]]:
    """Return combinations in which each parameter has each of its first ``values`` values once.

    The others have their first value there.
    """
    first = {path: own[0] for path, own in grid.items()}
    others = [{**first, path: value} for path, own in grid.items() for value in own[1:values]]
    return [first, *others]


def describe_point(changes: Mapping[str, Any]) -> str:
    """Write a combination as it would stand on the command line."""
    return " ".join(f"{path}={value}" for path, value in changes.items())
