"""Wrappers that experiments name: gymnasium's by their class, and those of a user's file."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from ratchet.errors import ParameterError, UnknownNameError, nearest
from ratchet.plugins import is_class_spec, load_class
from ratchet.registry import is_file

if TYPE_CHECKING:
    import gymnasium

    from ratchet.parameters.base import Reference

_PATH = "gymnasium.wrappers"
_RUNNING_MEANS = ("NormalizeObservation", "NormalizeReward")
"""What they have seen lies in the simulator, which no stage keeps."""
_Base = TypeVar("_Base")


def wrapped(
    environment: gymnasium.Env[Any, Any],
    wrappers: Iterable[Reference],
    base_dir: Path | str | None = None,
) -> gymnasium.Env[Any, Any]:
    """Put wrappers around an environment, the first one innermost.

    Raises
    ------
    ParameterError
        If there is no such wrapper, it does not take its arguments, or could not be resumed.
    """
    import gymnasium

    for reference in wrappers:
        found = class_by_name(
            reference.name, gymnasium.wrappers, gymnasium.Wrapper, _PATH, base_dir
        )
        if found.__name__ in _RUNNING_MEANS and found.__module__.startswith("gymnasium."):
            raise ParameterError(
                f"{_PATH}: got {reference.name!r}, whose running means no stage keeps, so that a"
                " resumed run would differ. Take rl.normalize_observations, or for TorchRL's"
                " trainers torchrl.transforms: [VecNormV2]."
            )
        with checked_arguments(reference.name, reference.given, _PATH):
            environment = found(environment, **reference.given)
    return environment


def refuse_wrappers(wrappers: Iterable[Reference], name: str) -> None:
    """Refuse wrappers of an environment that is none of gymnasium's.

    Raises
    ------
    ParameterError
        If there are some.
    """
    names = [reference.name for reference in wrappers]
    if names:
        raise ParameterError(
            f"{_PATH}: got {names} for {name!r}, expected none, as it is no environment of"
            " gymnasium's. TorchRL's trainers have torchrl.transforms for any environment."
        )


def class_by_name(
    name: str, home: ModuleType, base: type[_Base], path: str, base_dir: Path | str | None = None
) -> type[_Base]:
    """Return a class of a library's module, or that of ``path/to/file.py:ClassName``.

    ``path`` is that of the parameter that names it.

    Raises
    ------
    UnknownNameError
        If the module has no such class; with the nearest one.
    ParameterError
        If it can't be loaded from the file.
    """
    if is_file(name):
        return load_class(name, base_dir, base=base)
    found = getattr(home, name, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        known = [n for n, v in inspect.getmembers(home, inspect.isclass) if issubclass(v, base)]
        raise UnknownNameError(
            f"{path}: {home.__name__} has no class {name!r}.{nearest(name, known)} One of your own"
            " is given as 'path/to/file.py:ClassName'."
        )
    return found


def classes_of_files(
    references: Iterable[Reference], base_dir: Path | str | None = None
) -> tuple[type, ...]:
    """Return the classes that lie in files of a user's, for code fingerprints."""
    return tuple(load_class(r.name, base_dir) for r in references if is_class_spec(r.name))


@contextmanager
def checked_arguments(
    name: str, kwargs: Mapping[str, Any], path: str = "gymnasium.environment_kwargs"
) -> Iterator[None]:
    """Say of a constructor that is called within which arguments it got.

    Raises
    ------
    ParameterError
        If it does not take them.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ParameterError(
            f"{path}: {name} got {sorted(kwargs)}: {error}. Expected arguments of its constructor."
        ) from error
