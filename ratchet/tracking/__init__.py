"""Run folders that can be read with no server, and their mirror in MLflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.tracking.environment import CodeState, capture_code_state, capture_versions
    from ratchet.tracking.manifest import RunManifest, StageRecord
    from ratchet.tracking.metrics import MetricPoint
    from ratchet.tracking.mlflow.mirror import MlflowMirror
    from ratchet.tracking.result_table import ResultTable
    from ratchet.tracking.run_folder import RunFolder, find_run, list_runs

__all__ = [
    "CodeState",
    "MetricPoint",
    "MlflowMirror",
    "ResultTable",
    "RunFolder",
    "RunManifest",
    "StageRecord",
    "capture_code_state",
    "capture_versions",
    "find_run",
    "list_runs",
]

_HOMES = {
    "CodeState": "ratchet.tracking.environment",
    "MetricPoint": "ratchet.tracking.metrics",
    "MlflowMirror": "ratchet.tracking.mlflow.mirror",
    "ResultTable": "ratchet.tracking.result_table",
    "RunFolder": "ratchet.tracking.run_folder",
    "RunManifest": "ratchet.tracking.manifest",
    "StageRecord": "ratchet.tracking.manifest",
    "capture_code_state": "ratchet.tracking.environment",
    "capture_versions": "ratchet.tracking.environment",
    "find_run": "ratchet.tracking.run_folder",
    "list_runs": "ratchet.tracking.run_folder",
}


__getattr__ = lazy_names(__name__, _HOMES)
