"""Points of a sweep: a deterministic function of its specification, the same on every machine.

Grids on the command line, ``seed=0..4 interaction_protocol=nip,adp``, specify all combinations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ratchet.errors import ParameterError
from ratchet.parameters.reading.yaml_files import parse_yaml
from ratchet.parameters.sweeps import (
    SECTION,
    Choices,
    Distribution,
    GridSweep,
    Point,
    SweepSpec,
    expand_values,
    grid_points,
    refuse_settings,
)
from ratchet.store.keys import canonical_json
from ratchet.tracking.preregistration import SECTION as PREREGISTERED

Grid = dict[str, list[Any]]


def read_grid(assignments: Iterable[str]) -> tuple[Grid, list[str]]:
    """Return the varying values by dotted path, and assignments of single values as overrides.

    Parameters
    ----------
    assignments
        ``a.b=VALUES``. Values are YAML separated by commas; ``0..4`` denotes the integers from 0
        to 4. A value that is a list is written in brackets: ``[7,8],[9]`` are two values.
        Assignments to ``sweep.…`` and ``preregistered.…`` override the file's sections, and
        ``~a.b`` removes a part of the file.
    """
    grid: Grid = {}
    overrides: list[str] = []
    seen: set[str] = set()
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        path = path.strip()
        if path.startswith("~") and not equals:
            overrides.append(assignment)
            continue
        if not equals or not all(path.split(".")):
            raise ParameterError(
                f"sweep: got {assignment!r}, expected a.b=VALUES, e.g. seed=0..4 or rl.lr=0.1,0.01."
            )
        if path in seen:
            raise ParameterError(f"sweep: {path} is assigned twice; use one assignment.")
        seen.add(path)
        if path.partition(".")[0] in (SECTION, PREREGISTERED):
            overrides.append(assignment)
            continue
        where = f"sweep: {path}"
        values = expand_values(where, parse_yaml(f"[{text}]", where))
        if len(values) == 1:
            overrides.append(assignment)
        elif path.partition(".")[0] in ("settings", "arms"):
            raise ParameterError(
                f"sweep: {path}: got {values!r}, expected a single value: settings do not affect"
                " results, and arms are defined separately."
            )
        else:
            grid[path] = values
    return grid, overrides


def with_assignments(
    spec: SweepSpec | None, grid: Mapping[str, list[Any]], fixed: Iterable[str]
) -> SweepSpec:
    """Override a file's specification by the command line; return a grid if there is no section.

    Each point is combined with ``grid``; parameters in ``fixed`` no longer vary.
    """
    if spec is None:
        return GridSweep(parameters=dict(grid))
    overridden = {*fixed, *grid}
    left = {path: each for path, each in spec.parameters.items() if path not in overridden}
    if isinstance(spec, GridSweep):
        return GridSweep(parameters={**left, **grid})
    if not left:
        raise ParameterError(
            f"sweep.parameters: the command line overrides all of {', '.join(spec.parameters)};"
            " expected at least one that varies."
        )
    if "for_each" in type(spec).model_fields:
        for_each = getattr(spec, "for_each", {}).items()
        others = {path: values for path, values in for_each if path not in overridden}
        return spec.model_copy(update={"parameters": left, "for_each": {**others, **grid}})
    if grid:
        path = next(iter(grid))
        raise ParameterError(
            f"sweep: {path}: a sweep of kind {spec.kind} cannot be combined with a grid. Vary this"
            f" parameter in its section, with sweep.parameters.{path}={grid[path]!r}, or assign a"
            " single value."
        )
    return spec.model_copy(update={"parameters": left})


def sweep_points(spec: SweepSpec) -> list[Point]:
    """Return the changes of each member in order; an empty list if Optuna chooses them.

    Duplicate points are removed, and each point is combined with ``for_each``.
    """
    points = spec.points()
    for path in dict.fromkeys(path for point in points for path in point):
        refuse_settings(f"{SECTION}: {path}", path)
    unique = {canonical_json(point): point for point in points}
    further = grid_points(getattr(spec, "for_each", {}))
    return [{**point, **more} for point in unique.values() for more in further]


def corner_points(parameters: Mapping[str, Distribution]) -> list[Point]:
    """Return points that contain each bound, or choice, of each distribution once."""
    bounds = {
        path: each.values if isinstance(each, Choices) else [each.at(0.0), each.at(1.0)]
        for path, each in parameters.items()
    }
    return sample_points(bounds)


def sample_points(grid: Mapping[str, Sequence[Any]], max_values: int | None = None) -> list[Point]:
    """Return points that contain each of the first ``max_values`` values of a parameter once.

    All other parameters have their first value.
    """
    first = {path: values[0] for path, values in grid.items()}
    others = [
        {**first, path: value} for path, values in grid.items() for value in values[1:max_values]
    ]
    return [first, *others]


def describe_point(changes: Mapping[str, Any]) -> str:
    """Format a point as on the command line."""
    return " ".join(f"{path}={value}" for path, value in changes.items())
