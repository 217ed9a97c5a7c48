"""What may write answers for training, by the names that ``language.engine`` takes."""

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
"""Classes that are made with a model, and with what stands beside their name."""


def find_engine(name: str, base_dir: Path | None = None) -> type[RolloutEngine]:
    """Return the class of an engine: by name, or ``path/to/file.py:Class``.

    Raises
    ------
    UnknownNameError, ParameterError
        If there is none.
    """
    return ENGINES.find(name, base_dir)


def make_engine(
    name: str, model: LanguageModel, given: Mapping[str, Any], base_dir: Path | None = None
) -> RolloutEngine:
    """Make an engine that answers with a model's weights.

    Raises
    ------
    UnknownNameError, ParameterError
        If there is none of the name, or it doesn't take what is ``given``.
    """
    found: Any = find_engine(name, base_dir)
    try:
        engine: RolloutEngine = found(model, **given)
    except TypeError as error:
        raise ParameterError(
            f"language.engine: {name} can't be made with {dict(given)}: {error}."
        ) from error
    return engine
