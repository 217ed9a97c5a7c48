"""What a form sends, as the overrides that the command line takes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic_core import MISSING

LEFT_OUT: Any = MISSING
"""The default of a field that may be left empty: a form shows none, and sends nothing for it."""
_Given = TypeVar("_Given")
ITERATIONS = "rl.num_iterations"
BUDGET = "settings.budget"


def overrides(
    top: Mapping[str, Any],
    sections: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    agents: Mapping[str, Any] | None = None,
    others: Sequence[str] | None = None,
) -> list[str]:
    """Return overrides: first what stands in sections, then the fields on top, then the texts.

    What was left empty is not among them. The later of two for the same parameter counts.

    Parameters
    ----------
    top
        Dotted path → value.
    others
        Overrides as they are written on the command line.
    """
    nested = {**given(sections, {}), "settings": settings, "agents": agents}
    found = {**dict(_leaves(nested)), **dict(_leaves(top))}
    texts = [f"{path}={_written(value)}" for path, value in found.items()]
    return [*texts, *given(others, ())]


def given(value: _Given | None, otherwise: _Given) -> _Given:
    """Return what a field was filled with, or ``otherwise`` where it was left empty."""
    return otherwise if value is None or value is LEFT_OUT else value


def values(path: str, several: Iterable[Any] | None) -> list[str]:
    """Return what varies in a sweep, ``a.b=1,2``; nothing where nothing was chosen."""
    chosen = ",".join(_written(value) for value in given(several, ()))
    return [f"{path}={chosen}"] if chosen else []


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        elif given(value, []) != []:
            yield f"{prefix}{name}", value


def _written(value: object) -> str:
    """Write a value as JSON that is YAML too: YAML knows no escaped pairs, as of an emoji."""
    return json.dumps(value, ensure_ascii=False)
