"""``SweepSpec``: the members of a sweep; the ``sweep`` section of an experiment file.

Never part of a stage's key: a member's parameters include everything that affects its result.
"""

from __future__ import annotations

import itertools
import math
import re
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, TypeVar

from pydantic import (
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from ratchet.errors import ParameterError, nearest, shown
from ratchet.parameters.base import SubParameters
from ratchet.parameters.reading.messages import describe_validation_error, raise_together
from ratchet.registry import Registry
from ratchet.seeding import derive_seed, numpy_generator
from ratchet.tracking.preregistration import SECTION as PREREGISTERED

SECTION = "sweep"
DIGITS = 6
"""Significant digits of sampled numbers, which are thus equal on every machine."""

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_Model = TypeVar("_Model", bound=SubParameters)


class Choices(SubParameters):
    """One of ``values``, with equal probability."""

    kind: Literal["choices"] = "choices"
    values: list[Any] = Field(min_length=1)

    def at(self, share: float) -> Any:  # noqa: ANN401 -- a value of any type
        """Return the quantile at ``share``."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]


class _Bounds(SubParameters):
    """A distribution between two bounds."""

    @model_validator(mode="after")
    def _are_apart(self) -> Self:
        low, high = getattr(self, "low"), getattr(self, "high")  # noqa: B009 -- of subclasses
        if low >= high:
            raise ValueError(f"expected low < high, got low={shown(low)} and high={shown(high)}")
        return self


class Uniform(_Bounds):
    """A number from ``low`` to ``high``."""

    kind: Literal["uniform"] = "uniform"
    low: FiniteFloat
    high: FiniteFloat

    def at(self, share: float) -> float:
        """Return the quantile at ``share``."""
        return self.rounded(_between(self.low, self.high, share))

    def rounded(self, value: float) -> float:
        """Round to the precision of samples."""
        return _rounded(value, self.low, self.high)


class LogUniform(_Bounds):
    """A number from ``low`` to ``high``, log-uniformly distributed."""

    kind: Literal["log_uniform"] = "log_uniform"
    low: Annotated[FiniteFloat, Field(gt=0)]
    high: Annotated[FiniteFloat, Field(gt=0)]

    def at(self, share: float) -> float:
        """Return the quantile at ``share``."""
        return self.rounded(math.exp(_between(math.log(self.low), math.log(self.high), share)))

    def rounded(self, value: float) -> float:
        """Round to the precision of samples."""
        return _rounded(value, self.low, self.high)


class Integers(_Bounds):
    """An integer from ``low`` to ``high`` inclusive; with ``log`` log-uniformly distributed."""

    kind: Literal["integers"] = "integers"
    low: int
    high: int
    log: bool = False

    @model_validator(mode="after")
    def _has_a_logarithm(self) -> Self:
        if self.log and self.low < 1:
            raise ValueError(f"expected low >= 1 with log, got low={self.low}")
        return self

    def at(self, share: float) -> int:
        """Return the quantile at ``share``."""
        if not self.log:
            return min(self.low + int(share * (self.high - self.low + 1)), self.high)
        quantile = math.exp(_between(math.log(self.low - 0.5), math.log(self.high + 0.5), share))
        return min(max(round(quantile), self.low), self.high)


Distribution: TypeAlias = Annotated[
    Choices | Uniform | LogUniform | Integers, Field(discriminator="kind")
]
Values: TypeAlias = dict[str, list[Any]]
"""Dotted path → the values to try."""
Point: TypeAlias = dict[str, Any]
"""Changes of a member: dotted path → value."""

BUILT_IN = dict.fromkeys(("grid", "zip", "random", "sobol", "optuna"), __name__)
SWEEPS: Registry[SweepSpec] = Registry(
    "sweep", f"{__name__}:SweepSpec", __name__, parameter="sweep.kind"
)


class SweepSpec(SubParameters):
    """Specification of a sweep, and base class of sweep strategies.

    A subclass adds its fields and returns its points. ``kind`` is its registered name or
    ``path/to/file.py:ClassName``. With a field ``for_each: Values`` each point is combined with
    all combinations of further values. ``samples``: whether ``parameters`` may be distributions.
    """

    samples: ClassVar[bool] = False

    kind: str
    parameters: dict[str, Any]

    @abstractmethod
    def points(self) -> list[Point]:
        """Return the changes of each member in order, the same on every machine."""


MAX_MEMBERS = 100_000
"""Maximum number of members of a sweep, and of values of a range."""


def grid_points(grid: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Return the combinations of a grid, the last parameter changing fastest."""
    number = math.prod(map(len, grid.values()))
    if number > MAX_MEMBERS:
        sizes = " × ".join(f"{len(values):,} of {path}" for path, values in grid.items())
        raise ParameterError(
            f"sweep: got {number:,} combinations ({sizes}), expected at most {MAX_MEMBERS:,}."
        )
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


@SWEEPS.register("grid")
class GridSweep(SweepSpec):
    """Every combination of values, the last parameter changing fastest."""

    kind: Literal["grid"] = "grid"
    parameters: Values

    def points(self) -> list[Point]:
        """Return all combinations."""
        return grid_points(self.parameters)


@SWEEPS.register("zip")
class ZipSweep(SweepSpec):
    """The first value of each parameter, then the second of each, and so on.

    With ``for_each`` each of these points for every combination of further values, such as seeds.
    """

    kind: Literal["zip"] = "zip"
    parameters: Annotated[Values, Field(min_length=1)]
    for_each: Values = Field(default_factory=dict)

    @model_validator(mode="after")
    def _are_equally_long(self) -> Self:
        lengths = {path: len(values) for path, values in self.parameters.items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{path} has {number}" for path, number in lengths.items())
            raise ValueError(f"expected equally many values of each parameter, but {counts}")
        return self

    def points(self) -> list[Point]:
        """Return one point per position in the lists of values."""
        rows = zip(*self.parameters.values(), strict=True)
        return [dict(zip(self.parameters, row, strict=True)) for row in rows]


class _SampledSweep(SweepSpec):
    """Sampled points; a larger ``num_samples`` starts with the same points."""

    parameters: Annotated[dict[str, Distribution], Field(min_length=1)]
    num_samples: Annotated[PositiveInt, Field(le=MAX_MEMBERS)]
    seed: NonNegativeInt = 0
    for_each: Values = Field(default_factory=dict)
    samples: ClassVar[bool] = True


@SWEEPS.register("random")
class RandomSweep(_SampledSweep):
    """``num_samples`` independent samples."""

    kind: Literal["random"] = "random"

    def points(self) -> list[Point]:
        """Sample each parameter independently of the other varying parameters."""
        return [
            {
                path: each.at(float(numpy_generator(self.seed, SECTION, number, path).random()))
                for path, each in self.parameters.items()
            }
            for number in range(self.num_samples)
        ]


@SWEEPS.register("sobol")
class SobolSweep(_SampledSweep):
    """``num_samples`` points of a Sobol sequence, which fill the space evenly.

    Most evenly if ``num_samples`` is a power of two. Scrambled with the seed unless ``scramble`` is
    off.
    """

    kind: Literal["sobol"] = "sobol"
    scramble: bool = True

    def points(self) -> list[Point]:
        """Return the first points of the sequence."""
        from scipy.stats import qmc

        seed = derive_seed(self.seed, SECTION)
        sequence = qmc.Sobol(len(self.parameters), scramble=self.scramble, rng=seed)
        rows = sequence.random_base2(math.ceil(math.log2(self.num_samples)))[: self.num_samples]
        items = self.parameters.items()
        return [{p: each.at(float(u)) for (p, each), u in zip(items, r, strict=True)} for r in rows]


class NoPruner(SubParameters):
    """Every member trains to its end."""

    kind: Literal["none"] = "none"


class MedianPruner(SubParameters):
    """End a member whose best value is worse than the others' median at that iteration.

    Not before ``num_startup_trials`` members have been completed, and not in the first
    ``num_warmup_iterations`` iterations of a member.
    """

    kind: Literal["median"] = "median"
    num_startup_trials: NonNegativeInt = 5
    num_warmup_iterations: NonNegativeInt = 0


class HalvingPruner(SubParameters):
    """Continue the best 1 / ``reduction_factor`` of members, repeatedly at geometric intervals.

    The first decision is after ``min_iterations``.
    """

    kind: Literal["successive_halving"] = "successive_halving"
    min_iterations: PositiveInt = 1
    reduction_factor: int = Field(default=4, ge=2)


class HyperbandPruner(SubParameters):
    """Successive halving in several brackets with early or late first decisions.

    ``max_iterations`` is a member's number of iterations; by default that of the first completed
    one.
    """

    kind: Literal["hyperband"] = "hyperband"
    min_iterations: PositiveInt = 1
    max_iterations: PositiveInt | None = None
    reduction_factor: int = Field(default=3, ge=2)


Pruner: TypeAlias = NoPruner | MedianPruner | HalvingPruner | HyperbandPruner


@SWEEPS.register("optuna")
class OptunaSweep(SweepSpec):
    """``num_trials`` members that Optuna chooses from the results of earlier ones.

    ``metric`` is ``STAGE/NAME`` of a recorded metric of the main arm: its last value is a member's
    result, its values in each iteration are the pruner's input.
    """

    kind: Literal["optuna"] = "optuna"
    parameters: Annotated[dict[str, Distribution], Field(min_length=1)]
    metric: str = Field(pattern=r"^[^/]+/.+$")
    direction: Literal["maximize", "minimize"] = "maximize"
    num_trials: PositiveInt
    seed: NonNegativeInt = 0
    sampler: Literal["tpe", "gp", "random"] = "tpe"
    num_startup_trials: PositiveInt = 10
    pruner: Annotated[Pruner, Field(discriminator="kind")] = NoPruner()
    samples: ClassVar[bool] = True

    def points(self) -> list[Point]:
        """Return an empty list: Optuna chooses members during the sweep."""
        return []

    @field_validator("pruner", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        return {"kind": value} if isinstance(value, str) else value


_DISTRIBUTIONS: dict[str, type[Choices | Uniform | LogUniform | Integers]] = {
    "choices": Choices,
    "uniform": Uniform,
    "log_uniform": LogUniform,
    "integers": Integers,
}


def read_sweep_spec(data: Mapping[str, Any], base_dir: Path | str | None = None) -> SweepSpec:
    """Read a sweep's specification from plain data, the ``sweep`` section of a file.

    Parameters are nested or dotted; values are a list, a range such as ``0..4``, or a
    distribution. Files of custom strategies are relative to ``base_dir``.
    """
    kind = data.get("kind")
    if not isinstance(kind, str):
        raise ParameterError(
            f"{SECTION}.kind: got {shown(kind)}, expected one of {', '.join(SWEEPS.names())}, or"
            " path/to/file.py:ClassName."
        )
    model = SWEEPS.find(kind, base_dir)
    content = dict(data)
    errors: list[ParameterError] = []
    for field in ("parameters", "for_each"):
        drawn = field == "parameters" and model.samples
        if isinstance(content.get(field), Mapping):
            content[field], wrong = _read_paths(f"{SECTION}.{field}", content[field], drawn=drawn)
            errors += wrong
    raise_together(errors)
    spec = _validated(model, content, SECTION)
    both = spec.parameters.keys() & getattr(spec, "for_each", {}).keys()
    if both:
        raise ParameterError(f"{SECTION}.for_each: {min(both)} is also in `parameters`.")
    return spec


def expand_values(where: str, listed: Sequence[Any]) -> list[Any]:
    """Expand the ranges among values, such as ``0..4``."""
    values: list[Any] = []
    for value in listed:
        values += _read_range(where, value) if isinstance(value, str) else [value]
    if not values:
        raise ParameterError(f"{where}: got no values, expected some, e.g. 1,2.")
    seen: set[Hashable] = set()
    for value in values:
        plain = value if isinstance(value, Hashable) else repr(value)
        if plain in seen:
            raise ParameterError(f"{where}: duplicate value {shown(value)}.")
        seen.add(plain)
    return values


def refuse_settings(where: str, path: str) -> None:
    """Raise ParameterError if a path to vary is not a parameter that affects results."""
    if path.partition(".")[0] in ("settings", "arms", SECTION, PREREGISTERED):
        raise ParameterError(
            f"{where}: expected a parameter that affects results, not a setting or an arm."
        )


def _read_paths(
    where: str, nested: Mapping[str, Any], *, drawn: bool
) -> tuple[dict[str, Any], list[ParameterError]]:
    """Read the varied values by dotted path; return them and the errors."""
    values_by_path: dict[str, Any] = {}
    errors: list[ParameterError] = []
    for path, value in _flat(nested):
        try:
            refuse_settings(f"{where}.{path}", path)
            values_by_path[path] = _read_one(f"{where}.{path}", value, drawn=drawn)
        except ParameterError as error:
            errors.append(error)
    return values_by_path, errors


def _read_one(where: str, value: object, *, drawn: bool) -> list[Any] | SubParameters:
    if isinstance(value, Mapping) and drawn:
        return _validated(_known_kind(where, value.get("kind"), _DISTRIBUTIONS), value, where)
    if isinstance(value, SubParameters) and drawn:
        return value
    if isinstance(value, str) and _RANGE.fullmatch(value):
        value = [value]
    if not isinstance(value, Sequence) or isinstance(value, str):
        other = ", or a distribution, e.g. {kind: uniform, low: 0, high: 1}" if drawn else ""
        raise ParameterError(f"{where}: got {shown(value)}, expected a list of values{other}.")
    values = expand_values(where, value)
    return Choices(values=values) if drawn else values


def _flat(nested: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """List the varied values by dotted path; a mapping with a ``kind`` is a distribution."""
    pairs: list[tuple[str, Any]] = []
    for name, value in nested.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and not isinstance(value.get("kind"), str):
            pairs += _flat(value, f"{path}.")
        else:
            pairs.append((path, value))
    return pairs


_Known = TypeVar("_Known")


def _known_kind(where: str, kind: object, known: Mapping[str, _Known]) -> _Known:
    if isinstance(kind, str) and kind in known:
        return known[kind]
    hint = nearest(str(kind), known)
    raise ParameterError(f"{where}.kind: got {shown(kind)}, expected the name of a kind.{hint}")


def _validated(model: type[_Model], data: Mapping[str, Any], where: str) -> _Model:
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        raise ParameterError(describe_validation_error(error, prefix=where, model=model)) from error


def _read_range(where: str, text: str) -> list[Any]:
    """Return the integers of ``0..4``; any other text is a value."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return [text]
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise ParameterError(f"{where}: the range {text} ends before its start.")
    if last - first >= MAX_MEMBERS:
        raise ParameterError(
            f"{where}: the range {text} has {last - first + 1:,} values, expected at most"
            f" {MAX_MEMBERS:,}."
        )
    return list(range(first, last + 1))


def _between(low: float, high: float, share: float) -> float:
    return low + share * (high - low)


def _rounded(value: float, low: float, high: float) -> float:
    return min(max(float(f"{value:.{DIGITS}g}"), low), high)
