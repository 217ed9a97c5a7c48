"""Rollouts of tensors in one file, without pickle: safetensors, names joined by slashes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import CheckPointNotFoundError, DataError

if TYPE_CHECKING:
    from tensordict import TensorDict, TensorDictBase

_SEPARATOR = "/"
_ABOUT = "about"
_BATCH_SIZE = "batch_size"


def save_rollouts(
    rollouts: TensorDictBase, path: str | Path, about: Mapping[str, str] | None = None
) -> None:
    """Write rollouts ``[E, T]`` into a file, overwritten if it is there.

    ``about`` tells the reader more, e.g. the agents' names; see :func:`read_about`.

    Raises
    ------
    DataError
        If a name contains a slash.
    """
    from safetensors.torch import save_file

    tensors = {}
    for key in rollouts.keys(include_nested=True, leaves_only=True):
        names = (key,) if isinstance(key, str) else key
        if any(_SEPARATOR in name for name in names):
            raise DataError(f"rollouts: a name in {names} contains {_SEPARATOR!r}, expected none.")
        tensors[_SEPARATOR.join(names)] = rollouts.get(key).detach().cpu().contiguous().clone()
    size = json.dumps(list(rollouts.batch_size))
    # One entry only: safetensors writes several in any order, and the same would differ in bytes.
    described = json.dumps({**(about or {}), _BATCH_SIZE: size}, sort_keys=True)
    save_file(tensors, path, metadata={_ABOUT: described})


def load_rollouts(path: str | Path) -> TensorDict:
    """Read what :func:`save_rollouts` wrote; the same names, numbers and types.

    Raises
    ------
    CheckPointNotFoundError
        If there is no such file.
    DataError
        If it is no file of rollouts.
    """
    from safetensors.torch import load_file
    from tensordict import TensorDict

    size = json.loads(read_about(path, _BATCH_SIZE))
    rollouts = TensorDict({}, batch_size=size)
    for name, tensor in load_file(path).items():
        rollouts.set(tuple(name.split(_SEPARATOR)), tensor)
    return rollouts


def read_about(path: str | Path, name: str) -> str:
    """Read one of the things that were written about rollouts.

    Raises
    ------
    CheckPointNotFoundError
        If there is no such file.
    DataError
        If it is no file of rollouts, or nothing of that name is known.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise CheckPointNotFoundError(f"{path}: no such file, expected rollouts.")
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(_ABOUT, "{}"))
    except (SafetensorError, ValueError) as error:
        raise DataError(f"{path}: not a file of rollouts ({error}).") from error
    if name not in about:
        raise DataError(f"{path}: says nothing about {name!r}, only about {sorted(about)}.")
    return str(about[name])
