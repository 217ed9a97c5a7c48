"""Specifications of nested arrays (shapes, types, bounds), and the layout of text rollouts.

Environments declare their inputs and outputs with them. :func:`rollout_spec` is the layout that
environments write and that statistics, transcripts, trainers and fine-tuning read. Shapes exclude
the batch dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ratchet.errors import ArrayShapeError, ArrayTypeError, DataError, KeyPathError, nearest
from ratchet.rollouts.arrays import STRING, Array, Shape, dotted, dtype_name, zeros
from ratchet.rollouts.nested_array_dict import NestedArrayDict

Scalar: TypeAlias = "int | float | bool | None"
BatchSize: TypeAlias = "int | Sequence[int]"

_ADDED_LATER = ("thinking", "invalid_reason")
NO_DECISION = 2
NOBODY = -1


@dataclass(frozen=True)
class ArraySpec:
    """Requirements of one array.

    Attributes
    ----------
    shape
        The dimensions after the batch.
    nothing
        The value for missing entries, e.g. -1 for an agent's index; 0, False or None by default.
    low, high
        Bounds, both inclusive.
    """

    shape: Shape
    dtype: Any
    nothing: Scalar = None
    low: float | None = None
    high: float | None = None

    def zeros(self, batch_size: BatchSize = ()) -> Array:
        """Create an array of zeros (None for text)."""
        return zeros((*_as_shape(batch_size), *self.shape), self.dtype)

    def blank(self, batch_size: BatchSize = ()) -> Array:
        """Create an array in which all entries are missing."""
        array = self.zeros(batch_size)
        if self.nothing is not None:
            array[...] = self.nothing
        return array

    def check(self, array: Array, batch_size: Shape, path: tuple[str, ...]) -> None:
        """Check an array.

        Raises
        ------
        ArrayShapeError, ArrayTypeError, DataError
            If shape, type or a value is not as it should be; with the key path.
        """
        expected = (*batch_size, *self.shape)
        if array.shape != expected:
            raise ArrayShapeError(f"{dotted(path)}: got shape {array.shape}, expected {expected}.")
        if array.dtype != self.dtype:
            raise ArrayTypeError(
                f"{dotted(path)}: got {dtype_name(array.dtype)}, expected {dtype_name(self.dtype)}."
            )
        if self.low is None and self.high is None:
            return
        low = -np.inf if self.low is None else self.low
        high = np.inf if self.high is None else self.high
        outside = (array < low) | (array > high)
        if outside.any():
            index = tuple(int(i) for i in np.argwhere(outside)[0])
            raise DataError(
                f"{dotted(path)}: got {array[index]} at {index}, expected values from {low} to"
                f" {high}."
            )


class StringArraySpec(ArraySpec):
    """Text; None if missing."""

    def __init__(self, shape: Sequence[int] = ()) -> None:
        super().__init__(tuple(shape), STRING)


class IntArraySpec(ArraySpec):
    """Integers (int64), with bounds if given."""

    def __init__(
        self,
        shape: Sequence[int] = (),
        *,
        nothing: int | None = None,
        low: int | None = None,
        high: int | None = None,
    ) -> None:
        super().__init__(tuple(shape), np.dtype(np.int64), nothing, low, high)


class FloatArraySpec(ArraySpec):
    """Floats, of four bytes by default."""

    def __init__(self, shape: Sequence[int] = (), dtype: Any = np.float32) -> None:  # noqa: ANN401
        super().__init__(tuple(shape), np.dtype(dtype))


class BoolArraySpec(ArraySpec):
    """Booleans."""

    def __init__(self, shape: Sequence[int] = (), *, nothing: bool | None = None) -> None:
        super().__init__(tuple(shape), np.dtype(np.bool_), nothing)


class CompositeSpec:
    """Requirements of a nested dictionary; any batch dimensions if ``batch_size`` is None."""

    def __init__(self, specs: Mapping[str, Any], batch_size: BatchSize | None = None) -> None:
        self.batch_size = None if batch_size is None else _as_shape(batch_size)
        self._specs: dict[tuple[str, ...], ArraySpec] = dict(_flat(specs, ()))

    def __getitem__(self, key: str | tuple[str, ...]) -> ArraySpec:
        """Return the spec at a key path."""
        path = (key,) if isinstance(key, str) else key
        if path not in self._specs:
            known = nearest(dotted(path), map(dotted, self._specs))
            raise KeyPathError(f"{dotted(path)}: there is no spec at this key path.{known}")
        return self._specs[path]

    def __contains__(self, key: object) -> bool:
        return (key if isinstance(key, tuple) else (key,)) in self._specs

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CompositeSpec):
            return NotImplemented
        return self.batch_size == other.batch_size and self._specs == other._specs

    def __hash__(self) -> int:
        return hash((self.batch_size, frozenset(self._specs)))

    def __repr__(self) -> str:
        lines = [
            f"  {dotted(path)}: {dtype_name(spec.dtype)} {spec.shape}"
            for path, spec in self._specs.items()
        ]
        return "\n".join([f"CompositeSpec(batch_size={self.batch_size})", *lines])

    def zeros(self, batch_size: BatchSize | None = None) -> NestedArrayDict:
        """Create zeros, False and None; ``batch_size`` is needed if the spec leaves it open."""
        size = self._size(batch_size)
        return self._made({path: spec.zeros(size) for path, spec in self._specs.items()}, size)

    def blank(self, batch_size: BatchSize | None = None) -> NestedArrayDict:
        """Create arrays in which all entries are missing, e.g. -1 for an agent's index."""
        size = self._size(batch_size)
        return self._made({path: spec.blank(size) for path, spec in self._specs.items()}, size)

    def check(self, data: NestedArrayDict, *, allow_more: bool = False) -> None:
        """Check a nested dictionary, which may hold other arrays with ``allow_more``.

        Raises
        ------
        KeyPathError
            If an array is missing, or an array has no spec.
        ArrayShapeError, ArrayTypeError, DataError
            If an array doesn't match its spec; with the key path.
        """
        if self.batch_size is not None and data.batch_size != self.batch_size:
            raise ArrayShapeError(f"got batch size {data.batch_size}, expected {self.batch_size}.")
        leaves = dict(data.leaves())
        for path, spec in self._specs.items():
            if path not in leaves:
                expected = (*data.batch_size, *spec.shape)
                raise KeyPathError(
                    f"{dotted(path)}: missing, expected {dtype_name(spec.dtype)} {expected}."
                )
            spec.check(leaves[path], data.batch_size, path)
        more = [path for path in leaves if path not in self._specs]
        if more and not allow_more:
            known = nearest(dotted(more[0]), map(dotted, self._specs))
            raise KeyPathError(
                f"{dotted(more[0])}: got an array of shape {leaves[more[0]].shape}, expected"
                f" nothing at this key path.{known}"
            )

    def _size(self, batch_size: BatchSize | None) -> Shape:
        if batch_size is not None:
            return _as_shape(batch_size)
        if self.batch_size is None:
            raise ArrayShapeError("the spec has no batch size: pass batch_size.")
        return self.batch_size

    def _made(self, leaves: Mapping[tuple[str, ...], Array], size: Shape) -> NestedArrayDict:
        array_dict = NestedArrayDict({}, size)
        for path, leaf in leaves.items():
            array_dict[path] = leaf
        return array_dict


def _flat(
    specs: Mapping[str, Any], above: tuple[str, ...]
) -> list[tuple[tuple[str, ...], ArraySpec]]:
    flat: list[tuple[tuple[str, ...], ArraySpec]] = []
    for name, spec in specs.items():
        path = (*above, name)
        if isinstance(spec, ArraySpec):
            flat.append((path, spec))
        elif isinstance(spec, Mapping):
            flat.extend(_flat(spec, path))
        else:
            raise ArrayTypeError(f"{dotted(path)}: got {spec!r}, expected an ArraySpec or mapping.")
    return flat


def _as_shape(size: BatchSize) -> Shape:
    return (size,) if isinstance(size, int) else tuple(size)


def rollout_spec(
    num_rounds: int,
    num_agents: int,
    num_channels: int,
    *,
    has_degrees: bool = False,
    has_tokens: bool = False,
) -> CompositeSpec:
    """Return the spec of a batch of rollouts; the batch size is open.

    Parameters
    ----------
    num_rounds, num_agents, num_channels
        T, A and C below; the protocol's.
    has_degrees
        Whether decisions have a confidence: then ``agents`` contains ``confidence``.
    has_tokens
        Whether the tokens of replies were requested: then ``agents`` contains ``tokens``, see
        :mod:`ratchet.rollouts.tokens`.

    Returns
    -------
    CompositeSpec
        For each rollout: its datapoint (``rollout_id``, ``datapoint_id``, ``seed``, ``y``,
        ``prover_stance``, ``question``, ``solution``), the messages at its end (``message_history``
        and ``message_agent_id`` [T, C], ``raw_message_history`` [T, A]), and for each of T steps:
        ``round``, ``done`` and ``terminated`` after it, ``padding`` if it was not played,
        ``node_id`` in a tree (or the agent whose turn was redrawn), and under ``agents`` each
        agent's actions.
    """
    history, steps = (num_rounds, num_channels), (num_rounds,)
    acts = (num_rounds, num_agents)
    degrees = {"confidence": FloatArraySpec(acts)} if has_degrees else {}
    tokens = {"tokens": StringArraySpec(acts)} if has_tokens else {}
    return CompositeSpec(
        {
            "rollout_id": IntArraySpec(nothing=-1),
            "datapoint_id": IntArraySpec(nothing=-1),
            "seed": IntArraySpec(),
            "y": IntArraySpec(low=0, high=1),
            "prover_stance": IntArraySpec(nothing=1, low=0, high=1),
            "question": StringArraySpec(),
            "solution": StringArraySpec(),
            "message_history": StringArraySpec(history),
            "message_agent_id": IntArraySpec(
                history, nothing=NOBODY, low=NOBODY, high=num_agents - 1
            ),
            "raw_message_history": StringArraySpec(acts),
            "round": IntArraySpec(steps, low=0),
            "padding": BoolArraySpec(steps, nothing=True),
            "done": BoolArraySpec(steps),
            "terminated": BoolArraySpec(steps),
            "node_id": IntArraySpec(steps, nothing=-1, low=-1),
            "agents": {
                "active": BoolArraySpec(acts),
                "message": StringArraySpec((*acts, num_channels)),
                "raw_message": StringArraySpec(acts),
                "prompt": StringArraySpec(acts),
                "decision": IntArraySpec(acts, nothing=NO_DECISION, low=0, high=NO_DECISION),
                **degrees,
                "reward": FloatArraySpec(acts),
                "retry_count": IntArraySpec(acts, low=0),
                "token_limit": BoolArraySpec(acts),
                "valid": BoolArraySpec(acts),
                "prompt_tokens": IntArraySpec(acts, low=0),
                "completion_tokens": IntArraySpec(acts, low=0),
                "thinking": StringArraySpec(acts),
                "invalid_reason": StringArraySpec(acts),
                **tokens,
            },
        }
    )


def add_later_arrays(rollouts: NestedArrayDict) -> None:
    """Add arrays that rollouts of earlier versions lack, in place, with missing entries."""
    if ("agents", "raw_message") not in rollouts:
        return
    for name in _ADDED_LATER:
        if ("agents", name) not in rollouts:
            rollouts["agents", name] = np.full_like(rollouts["agents", "raw_message"], None)
