"""Run folders that can be read with no server, and their mirror in MLflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from ratchet.tracking.environment import CodeState as CodeState
    from ratchet.tracking.environment import capture_code_state as capture_code_state
    from ratchet.tracking.environment import capture_versions as capture_versions
    from ratchet.tracking.manifest import RunManifest as RunManifest
    from ratchet.tracking.manifest import StageRecord as StageRecord
    from ratchet.tracking.metrics import MetricPoint as MetricPoint
    from ratchet.tracking.mirrors.mlflow.mirror import MlflowMirror as MlflowMirror
    from ratchet.tracking.result_table import ResultTable as ResultTable
    from ratchet.tracking.run_folder import RunFolder as RunFolder
    from ratchet.tracking.run_folder import find_run as find_run
    from ratchet.tracking.run_folder import list_runs as list_runs

export_lazily(__name__)
