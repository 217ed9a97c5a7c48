"""Validation of the batches and metrics that custom trainers prepare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real

import torch
from torch import Tensor

from ratchet.errors import DataError
from ratchet.rollouts.batch import Batch


def validated_batch(prepared: object, where: str) -> tuple[Batch, dict[str, float]]:
    """Return a validated_batch batch and its metrics, the metrics as numbers."""
    match prepared:
        case (Batch() as batch, Mapping() as metrics):
            batch.check()
            return batch, numbers_of(metrics, where)
        case tuple():
            got = "(" + ", ".join(type(part).__name__ for part in prepared) + ")"
        case _:
            got = type(prepared).__name__
    raise DataError(f"{where}: returned {got}, expected (Batch, dict of metrics).")


def numbers_of(metrics: Mapping[object, object], where: str) -> dict[str, float]:
    """Return metrics as floats; a tensor or an array of one number is converted."""
    return {
        _as_name(name, where): _as_number(name, value, where) for name, value in metrics.items()
    }


def _as_name(name: object, where: str) -> str:
    if isinstance(name, str) and name:
        return name
    raise DataError(f"{where}: got the metric name {name!r}, expected a text.")


def _as_number(name: object, value: object, where: str) -> float:
    got = repr(value)
    if hasattr(value, "shape") and hasattr(value, "item"):
        if math.prod(value.shape) == 1:
            value = value.item()
        else:
            got = f"{type(value).__name__} of the shape {tuple(value.shape)}"
    if isinstance(value, Real):
        return float(value)
    raise DataError(
        f"{where}: metrics {name!r}: got {got}, expected a number. Reduce several numbers to one,"
        " e.g. float(x.mean())."
    )


def check_finite(batch: Batch, names: Sequence[str]) -> None:
    """Check that the inputs of the loss are finite: one NaN would spread to all weights."""
    for name in names:
        value: Tensor = batch.values[name]
        if not value.is_floating_point():
            continue
        bad = ~torch.isfinite(value).flatten(1).all(1)
        if bad.any():
            row = int(bad.int().argmax())
            raise DataError(
                f"batch: values {name!r}: row {row} has {value[row][~value[row].isfinite()][0]},"
                " expected finite numbers of at most 3.4e38, the largest one in single precision."
                " The standard deviation of one number is NaN: add a small constant to the divisor,"
                " and set single completions to 0."
            )
