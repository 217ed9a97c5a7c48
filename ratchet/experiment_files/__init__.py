"""Experiment files: YAML, overrides, and parameters and agents of earlier runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.experiment_files.loading import ExperimentFile, load_experiment

__all__ = ["ExperimentFile", "load_experiment"]

__getattr__ = lazy_names(__name__, dict.fromkeys(__all__, "ratchet.experiment_files.loading"))
