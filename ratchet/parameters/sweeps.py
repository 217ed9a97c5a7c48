"""``SweepSpec``: which members a sweep has; the ``sweep`` section of an experiment file.

Never part of a stage's key: a member's parameters say all that decides its result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

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
from ratchet.parameters.messages import describe_validation_error, raise_together

SECTION = "sweep"
DIGITS = 6
"""Drawn numbers are rounded to so many significant digits: the same on every machine."""

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_Model = TypeVar("_Model", bound=SubParameters)


class Choices(SubParameters):
    """One of ``values``, each as likely."""

    kind: Literal["choices"] = "choices"
    values: list[Any] = Field(min_length=1)

    def at(self, share: float) -> Any:  # noqa: ANN401 -- a value of any type
        """Return the value below which ``share`` of the draws are."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]


class _Bounds(SubParameters):
    """What lies between two bounds."""

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
        """Return the number below which ``share`` of the draws are."""
        return self.rounded(_between(self.low, self.high, share))

    def rounded(self, value: float) -> float:
        """Round to what is drawn."""
        return _rounded(value, self.low, self.high)


class LogUniform(_Bounds):
    """A number from ``low`` to ``high``, its logarithm evenly."""

    kind: Literal["log_uniform"] = "log_uniform"
    low: Annotated[FiniteFloat, Field(gt=0)]
    high: Annotated[FiniteFloat, Field(gt=0)]

    def at(self, share: float) -> float:
        """Return the number below which ``share`` of the draws are."""
        return self.rounded(math.exp(_between(math.log(self.low), math.log(self.high), share)))

    def rounded(self, value: float) -> float:
        """Round to what is drawn."""
        return _rounded(value, self.low, self.high)


class Integers(_Bounds):
    """An integer from ``low`` to ``high``, both possible; with ``log`` its logarithm evenly."""

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
        """Return the integer below which ``share`` of the draws are."""
        if not self.log:
            return min(self.low + int(share * (self.high - self.low + 1)), self.high)
        found = math.exp(_between(math.log(self.low - 0.5), math.log(self.high + 0.5), share))
        return min(max(round(found), self.low), self.high)


Distribution: TypeAlias = Annotated[
    Choices | Uniform | LogUniform | Integers, Field(discriminator="kind")
]
Values: TypeAlias = dict[str, list[Any]]
"""Dotted path → the values to try."""


class GridSweep(SubParameters):
    """Every combination of values, the last parameter changing fastest."""

    kind: Literal["grid"] = "grid"
    parameters: Values


class ZipSweep(SubParameters):
    """The first value of each parameter, then the second of each, and so on.

    With ``for_each`` each of them for every combination of further values, such as seeds.
    """

    kind: Literal["zip"] = "zip"
    parameters: Annotated[Values, Field(min_length=1)]
    for_each: Values = Field(default_factory=dict)

    @model_validator(mode="after")
    def _are_equally_long(self) -> Self:
        lengths = {path: len(values) for path, values in self.parameters.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{path} has {number}" for path, number in lengths.items())
            raise ValueError(f"expected as many values of each parameter, but {told}")
        return self


class _SampledSweep(SubParameters):
    """So many points that are drawn; more of them begin with the same ones."""

    parameters: Annotated[dict[str, Distribution], Field(min_length=1)]
    num_samples: PositiveInt
    seed: NonNegativeInt = 0
    for_each: Values = Field(default_factory=dict)


class RandomSweep(_SampledSweep):
    """``num_samples`` independent draws."""

    kind: Literal["random"] = "random"


class SobolSweep(_SampledSweep):
    """``num_samples`` points of a Sobol sequence, which fill the space evenly.

    Most evenly if their number is a power of two. Scrambled by the seed, unless ``scramble`` is
    off.
    """

    kind: Literal["sobol"] = "sobol"
    scramble: bool = True


class NoPruner(SubParameters):
    """Every member trains to its end."""

    kind: Literal["none"] = "none"


class MedianPruner(SubParameters):
    """End a member whose best value so far is worse than the median of the others' then.

    Not before ``num_startup_trials`` members have been completed, and not in the first
    ``num_warmup_iterations`` iterations of a member.
    """

    kind: Literal["median"] = "median"
    num_startup_trials: NonNegativeInt = 5
    num_warmup_iterations: NonNegativeInt = 0


class HalvingPruner(SubParameters):
    """Let the best of ``reduction_factor`` members go on, and so again after as many times longer.

    The first is decided after ``min_iterations``.
    """

    kind: Literal["successive_halving"] = "successive_halving"
    min_iterations: PositiveInt = 1
    reduction_factor: int = Field(default=4, ge=2)


class HyperbandPruner(SubParameters):
    """Successive halving in several brackets, which begin to decide early or late.

    ``max_iterations`` is how many a member has; that of the first one completed if not given.
    """

    kind: Literal["hyperband"] = "hyperband"
    min_iterations: PositiveInt = 1
    max_iterations: PositiveInt | None = None
    reduction_factor: int = Field(default=3, ge=2)


Pruner: TypeAlias = NoPruner | MedianPruner | HalvingPruner | HyperbandPruner


class OptunaSweep(SubParameters):
    """``num_trials`` members, of which Optuna chooses each from what those before came to.

    ``metric`` is ``STAGE/NAME`` of a recorded metric of the main arm: its last value is what a
    member came to, its values in each iteration are what the pruner judges by.
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

    @field_validator("pruner", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        return {"kind": value} if isinstance(value, str) else value


SweepSpec: TypeAlias = GridSweep | ZipSweep | RandomSweep | SobolSweep | OptunaSweep
_KINDS: dict[str, type[SweepSpec]] = {
    "grid": GridSweep,
    "zip": ZipSweep,
    "random": RandomSweep,
    "sobol": SobolSweep,
    "optuna": OptunaSweep,
}
_DISTRIBUTIONS: dict[str, type[Choices | Uniform | LogUniform | Integers]] = {
    "choices": Choices,
    "uniform": Uniform,
    "log_uniform": LogUniform,
    "integers": Integers,
}


def read_sweep_spec(data: Mapping[str, Any]) -> SweepSpec:
    """Read a sweep's specification from plain data, the ``sweep`` section of a file.

    Parameters are nested or dotted; values are a list, a range such as ``0..4``, or a
    distribution.

    Raises
    ------
    ParameterError
        With the dotted path, the value and what was expected: all that is wrong, a line each.
    """
    kind = data.get("kind")
    model = _known_kind(SECTION, kind, _KINDS)
    content = dict(data)
    errors: list[ParameterError] = []
    for field in ("parameters", "for_each"):
        drawn = field == "parameters" and issubclass(model, (_SampledSweep, OptunaSweep))
        if isinstance(content.get(field), Mapping):
            content[field], wrong = _read_paths(f"{SECTION}.{field}", content[field], drawn=drawn)
            errors += wrong
    raise_together(errors)
    spec = _validated(model, content, SECTION)
    both = spec.parameters.keys() & getattr(spec, "for_each", {}).keys()
    if both:
        raise ParameterError(f"{SECTION}.for_each: {min(both)} stands in `parameters` too.")
    return spec


def expand_values(where: str, listed: Sequence[Any]) -> list[Any]:
    """Write out the ranges among values, such as ``0..4``.

    Raises
    ------
    ParameterError
        If there are none, one stands there twice, or a range ends before it begins.
    """
    values: list[Any] = []
    for value in listed:
        values += _read_range(where, value) if isinstance(value, str) else [value]
    if not values:
        raise ParameterError(f"{where}: got no values, expected some, e.g. 1,2.")
    seen: set[Hashable] = set()
    for value in values:
        plain = value if isinstance(value, Hashable) else repr(value)
        if plain in seen:
            raise ParameterError(f"{where}: the value {shown(value)} stands there twice.")
        seen.add(plain)
    return values


def refuse_settings(where: str, path: str) -> None:
    """Raise ParameterError if what is to vary changes no result, or is no parameter of a run."""
    if path.partition(".")[0] in ("settings", "arms", SECTION):
        raise ParameterError(
            f"{where}: expected a parameter that decides a result: settings change none, and arms"
            " are changes of their own."
        )


def _read_paths(
    where: str, nested: Mapping[str, Any], *, drawn: bool
) -> tuple[dict[str, Any], list[ParameterError]]:
    """Read what varies, by dotted path, and what is wrong with it."""
    found: dict[str, Any] = {}
    errors: list[ParameterError] = []
    for path, value in _flat(nested):
        try:
            refuse_settings(f"{where}.{path}", path)
            found[path] = _read_one(f"{where}.{path}", value, drawn=drawn)
        except ParameterError as error:
            errors.append(error)
    return found, errors


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
    """List what varies by dotted path; a distribution is a mapping that says its kind."""
    found: list[tuple[str, Any]] = []
    for name, value in nested.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and not isinstance(value.get("kind"), str):
            found += _flat(value, f"{path}.")
        else:
            found.append((path, value))
    return found


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
    """Return the integers of ``0..4``; any other text is a value itself."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return [text]
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise ParameterError(f"{where}: the range {text} ends before it begins.")
    return list(range(first, last + 1))


def _between(low: float, high: float, share: float) -> float:
    return low + share * (high - low)


def _rounded(value: float, low: float, high: float) -> float:
    return min(max(float(f"{value:.{DIGITS}g}"), low), high)
