"""Base model and engine of a service."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ratchet.errors import ParameterError
from ratchet.language_models.engines.interface import Engine
from ratchet.language_models.service.models import StoredModel
from ratchet.language_models.service.settings import BASE_MODEL, SMALL_MODEL, ServiceSettings

_BUILD = "ratchet.scenarios.code_validation.tiny_model.build"
_RECIPES = {
    BASE_MODEL: f"{_BUILD}:ensure_base_model",
    SMALL_MODEL: f"{_BUILD}:ensure_small_model",
}
"""Models that can be generated: name → function from home to folder."""
_ENGINES = {
    "torch": "ratchet.language_models.engines.torch_engine:TorchEngine",
    "vllm": "ratchet.language_models.engines.vllm_engine:VllmEngine",
}


def find_base_model(settings: ServiceSettings) -> StoredModel:
    """Find, download or generate the base model.

    Raises
    ------
    ParameterError
        If ``settings.model`` is neither a model's folder nor a name on the hub.
    """
    name = settings.model or BASE_MODEL
    if name in _RECIPES:
        return StoredModel(name, _make(name, settings.home), name)
    folder = Path(name).expanduser()
    if folder.is_dir():
        name = folder.resolve().name
        return StoredModel(name, folder.resolve(), name)
    return StoredModel(name, _fetch(name), name)


def further_models(settings: ServiceSettings) -> dict[str, Callable[[], Path]]:
    """Return other models that can be generated, by name; none next to a user's base model."""
    name = settings.model or BASE_MODEL
    others = [other for other in _RECIPES if name in _RECIPES and other != name]
    return {other: partial(_make, other, settings.home) for other in others}


def describe_base_model(settings: ServiceSettings) -> str:
    """Describe the work of :func:`find_base_model`, for progress messages."""
    name = settings.model or BASE_MODEL
    if name in _RECIPES:
        return f"Preparing the base model {name}, which is generated once per home"
    return f"{'Reading' if Path(name).expanduser().is_dir() else 'Fetching'} the model {name}"


def make_engine(settings: ServiceSettings) -> Engine:
    """Build the configured engine; imports its packages.

    Raises
    ------
    ParameterError
        If the engine does not exist, or its packages are not installed.
    """
    name = settings.engine
    module, _, attribute = _ENGINES.get(name, name).partition(":")
    options = {}
    if name == "vllm":
        options = {"max_loras": settings.max_loras, "sleep_level": settings.sleep_level}
    try:
        engine: Engine = getattr(importlib.import_module(module), attribute)(**options)
    except (ImportError, AttributeError, ValueError) as error:
        raise ParameterError(
            f"The engine {name!r} is not available: {error}. Known: {', '.join(_ENGINES)}, or a"
            " class given as module:Class."
        ) from error
    return engine


def _make(name: str, home: Path) -> Path:
    module, _, function = _RECIPES[name].partition(":")
    make: Callable[[Path], Path] = getattr(importlib.import_module(module), function)
    return make(home)


def _fetch(name: str) -> Path:
    """Find a model in the Hugging Face cache, or download it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ParameterError(
            f"The model {name!r} is neither a local folder nor available from the Hugging Face hub"
            f" ({type(error).__name__}). Give a folder with config.json and model.safetensors, or a"
            " name on the hub."
        ) from error
