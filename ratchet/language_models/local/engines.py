"""Registry of engines that generate training completions, named by ``language.engine``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import ParameterError
from ratchet.registry import Registry

if TYPE_CHECKING:
    from ratchet.language_models.local.model import LanguageModel
    from ratchet.language_models.local.rollout_engine import RolloutEngine

ENGINES: Registry[RolloutEngine] = Registry(
    "rollout_engine", home="ratchet.language_models.local", parameter="language.engine"
)
"""Engine classes, constructed with a model and the options of ``language.engine``."""


def find_engine(name: str, base_dir: Path | None = None) -> type[RolloutEngine]:
    """Return the class of an engine: by name, or ``path/to/file.py:Class``.

    Raises
    ------
    UnknownNameError, ParameterError
        If it does not exist.
    """
    return ENGINES.find(name, base_dir)


def make_engine(
    name: str, model: LanguageModel, given: Mapping[str, Any], base_dir: Path | None = None
) -> RolloutEngine:
    """Build an engine that generates with a model's weights.

    Raises
    ------
    UnknownNameError, ParameterError
        If the engine does not exist, or does not accept the options ``given``.
    """
    found: Any = find_engine(name, base_dir)
    try:
        engine: RolloutEngine = found(model, **given)
    except TypeError as error:
        raise ParameterError(
            f"language.engine: {name} cannot be created with {dict(given)}: {error}."
        ) from error
    return engine
