"""The points of a sweep: a pure function of its specification, the same on every machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from flows.sweeps.grid import grid_points
from ratchet.errors import ParameterError
from ratchet.parameters.sweeps import (
    Choices,
    Distribution,
    GridSweep,
    OptunaSweep,
    RandomSweep,
    SobolSweep,
    SweepSpec,
    ZipSweep,
)
from ratchet.seeding import derive_seed, numpy_generator
from ratchet.store.keys import canonical_json

Point = dict[str, Any]
STAGE = "sweep"


def with_assignments(
    spec: SweepSpec | None, grid: Mapping[str, list[Any]], fixed: Iterable[str]
) -> SweepSpec:
    """Put what the command line says over a file's specification; a grid where there is none.

    What varies there is tried with each point; what has one value there, ``fixed``, varies no more.

    Raises
    ------
    ParameterError
        If nothing is left to vary, or Optuna is to choose beside a grid.
    """
    if spec is None:
        return GridSweep(parameters=dict(grid))
    gone = {*fixed, *grid}
    left = {path: each for path, each in spec.parameters.items() if path not in gone}
    if isinstance(spec, GridSweep):
        return GridSweep(parameters={**left, **grid})
    if not left:
        raise ParameterError(
            f"sweep.parameters: nothing is left of {', '.join(spec.parameters)}: the command line"
            " says all of them."
        )
    if isinstance(spec, OptunaSweep):
        if grid:
            path = next(iter(grid))
            raise ParameterError(
                f"sweep: {path}: Optuna chooses each member by itself. Let it choose this too, with"
                f" sweep.parameters.{path}={grid[path]!r}, or give it one value."
            )
        return spec.model_copy(update={"parameters": left})
    others = {path: values for path, values in spec.for_each.items() if path not in gone}
    return spec.model_copy(update={"parameters": left, "for_each": {**others, **grid}})


def sweep_points(spec: SweepSpec) -> list[Point]:
    """Return what each member changes, in order; nothing of what Optuna chooses on the way.

    A point that is drawn twice is there once. More samples begin with the same points.
    """
    if isinstance(spec, GridSweep):
        return grid_points(spec.parameters)
    if isinstance(spec, OptunaSweep):
        return []
    if isinstance(spec, ZipSweep):
        rows = zip(*spec.parameters.values(), strict=True)
        points = [dict(zip(spec.parameters, row, strict=True)) for row in rows]
    elif isinstance(spec, SobolSweep):
        points = _sobol_points(spec)
    else:
        points = [_random_point(spec, number) for number in range(spec.num_samples)]
    once = {canonical_json(point): point for point in points}
    return [{**point, **more} for point in once.values() for more in grid_points(spec.for_each)]


def corner_points(parameters: Mapping[str, Distribution]) -> list[Point]:
    """Return points at which each distribution has each of its ends, or choices, once."""
    ends = {
        path: each.values if isinstance(each, Choices) else [each.at(0.0), each.at(1.0)]
        for path, each in parameters.items()
    }
    first = {path: values[0] for path, values in ends.items()}
    others = [{**first, path: value} for path, values in ends.items() for value in values[1:]]
    return [first, *others]


def _random_point(spec: RandomSweep, number: int) -> Point:
    """Draw each parameter by itself: what else varies changes nothing of it."""
    return {
        path: each.at(float(numpy_generator(spec.seed, STAGE, number, path).random()))
        for path, each in spec.parameters.items()
    }


def _sobol_points(spec: SobolSweep) -> list[Point]:
    from scipy.stats import qmc

    seed = derive_seed(spec.seed, STAGE)
    sequence = qmc.Sobol(len(spec.parameters), scramble=spec.scramble, rng=seed)
    rows = sequence.random_base2(math.ceil(math.log2(spec.num_samples)))[: spec.num_samples]
    return [
        {p: each.at(float(u)) for (p, each), u in zip(spec.parameters.items(), row, strict=True)}
        for row in rows
    ]
