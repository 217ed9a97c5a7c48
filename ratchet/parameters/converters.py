"""Upgrade parameters that an earlier version wrote: a chain of converters, each says what it did.

Saved parameters carry ``parameters_version``. Files that people write need not: without it the
whole chain is gone through. Hence the rule for every converter: it touches only what the next
version doesn't know any more. A key whose meaning changes gets a new name.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, TypeAlias

from ratchet.errors import ParameterError, shown
from ratchet.parameters.discovery import load_plugins

VERSION_KEY = "parameters_version"
PARAMETERS_VERSION = 1
"""The version of what this code reads; saved beside the values."""

Converter: TypeAlias = Callable[[dict[str, Any]], list[str]]
"""Changes nested data in place and gives one sentence for each change."""

logger = logging.getLogger(__name__)

_CONVERTERS: dict[int, Converter] = {}


def register_converter(from_version: int) -> Callable[[Converter], Converter]:
    """Register what turns parameters of ``from_version`` into those of the next.

    Raises
    ------
    ParameterError
        If that version has another converter.
    """

    def decorate(converter: Converter) -> Converter:
        known = _CONVERTERS.get(from_version)
        if known is not None and known.__qualname__ != converter.__qualname__:
            raise ParameterError(
                f"parameters of version {from_version} are converted by {known.__qualname__};"
                f" got {converter.__qualname__}. Expected one converter a version."
            )
        _CONVERTERS[from_version] = converter
        return converter

    return decorate


def upgrade_parameters(
    data: Mapping[str, Any], to_version: int = PARAMETERS_VERSION
) -> tuple[dict[str, Any], list[str]]:
    """Return parameters of any version as those of ``to_version``, and a sentence for each change.

    ``data`` are nested, as a file has them, and stay as they are. The returned ones have their
    current names and no ``parameters_version``; there is no sentence if nothing was old.

    Raises
    ------
    ParameterError
        If the version is none, or a newer one than this code knows.
    """
    importlib.import_module("ratchet.parameters.version_0")
    load_plugins()
    converted = deepcopy(dict(data))
    version = converted.pop(VERSION_KEY, 0)
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise ParameterError(
            f"{VERSION_KEY}: got {shown(version)}, expected a whole number from 0."
        )
    if version > to_version:
        raise ParameterError(
            f"{VERSION_KEY}: got {version}, expected at most {to_version}: the parameters were"
            " written by a newer version of Ratchet. Install that one."
        )
    changes: list[str] = []
    for step in range(version, to_version):
        changes += _CONVERTERS[step](converted)
    return converted, changes


def upgraded(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Upgrade parameters as :func:`upgrade_parameters` does, and log each change."""
    converted, changes = upgrade_parameters(data)
    for change in changes:
        logger.warning("%s: parameters of an earlier version: %s", source, change)
    return converted
