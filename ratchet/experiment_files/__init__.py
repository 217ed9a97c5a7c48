"""Experiment files: YAML, overrides, and parameters and agents of earlier runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from ratchet.experiment_files.loading import ExperimentFile as ExperimentFile
    from ratchet.experiment_files.loading import load_experiment as load_experiment

export_lazily(__name__)
