"""The registry of analysers by name; an own one may be given as ``path/to/file.py:Class``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

from ratchet.analysis.base import Analyser
from ratchet.errors import ParameterError, UnknownNameError, nearest
from ratchet.plugins import is_class_spec, load_class, take_name

_BUILT_IN = {
    "code_quoting": "ratchet.analysis.code_quoting",
    "role_keeping": "ratchet.analysis.role_keeping",
}
_ANALYSERS: dict[str, type[Analyser]] = {}
_AnalyserClass = TypeVar("_AnalyserClass", bound=type[Analyser])


def register_analyser(name: str) -> Callable[[_AnalyserClass], _AnalyserClass]:
    """Give an analyser the name that the command line uses, and its folder of results.

    Raises
    ------
    ParameterError
        If another class has taken the name, or it can't be a folder's name.
    """
    if not name.isidentifier():
        raise ParameterError(f"analyser: got the name {name!r}, expected letters, digits and _.")

    def decorate(analyser: _AnalyserClass) -> _AnalyserClass:
        take_name(_ANALYSERS, "analyser", name, analyser)
        return analyser

    return decorate


def analyser_names() -> list[str]:
    """List all analysers."""
    return sorted({*_BUILT_IN, *_ANALYSERS})


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
    if is_class_spec(name):
        found = load_class(name, base=Analyser)  # type: ignore[type-abstract]
        return found.__name__, found()
    if name not in _ANALYSERS and name in _BUILT_IN:
        import_module(_BUILT_IN[name])
    if name not in _ANALYSERS:
        raise UnknownNameError(f"analyser: unknown {name!r}.{nearest(name, analyser_names())}")
    return name, _ANALYSERS[name]()
