"""Former path of :func:`ratchet.experiment_files.loading.load_experiment`, kept as an alias."""

from __future__ import annotations

from importlib import import_module


def __getattr__(name: str) -> object:
    if name not in ("ExperimentFile", "load_experiment"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("ratchet.experiment_files.loading"), name)
