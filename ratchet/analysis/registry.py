"""The registry of analysers by name; an own one may be given as ``path/to/file.py:Class``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ratchet.errors import ParameterError
from ratchet.plugins import is_class_spec
from ratchet.registry import Registry

if TYPE_CHECKING:
    from ratchet.analysis.base import Analyser

_AnalyserClass = TypeVar("_AnalyserClass", bound="type[Analyser]")

ANALYSERS: Registry[Analyser] = Registry(
    "analyser", "ratchet.analysis.base:Analyser", "ratchet.analysis"
)


def register_analyser(name: str) -> Callable[[_AnalyserClass], _AnalyserClass]:
    """Give an analyser the name that the command line uses, and its folder of results.

    Raises
    ------
    ParameterError
        If another class has taken the name, or it can't be a folder's name.
    """
    if not name.isidentifier():
        raise ParameterError(f"analyser: got the name {name!r}, expected letters, digits and _.")
    return ANALYSERS.register(name)


def analyser_names() -> list[str]:
    """List all analysers."""
    return ANALYSERS.names()


def build_analyser(name: str) -> tuple[str, Analyser]:
    """Make an analyser.

    Parameters
    ----------
    name
        A registered name, or ``path/to/file.py:Class``.

    Returns
    -------
    tuple
        The name of its folder of results, and the analyser.

    Raises
    ------
    UnknownNameError
        If there is none of that name; the message has the nearest.
    """
    found = ANALYSERS.find(name)
    return (found.__name__ if is_class_spec(name) else name), found()
