"""Payload of mirrors: a run's parameters, tags, metrics and files as plain values.

Pure functions of a run folder. Keys and tags are MLflow's.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ratchet.statistics.results import (
    accuracy,
    agents_by_return,
    evaluator_metrics,
    has_decisions,
    mean_metric,
    mean_return,
)
from ratchet.tracking.manifest import MAIN_ARM, RunManifest, describe_phases
from ratchet.tracking.metrics import MetricPoint, metrics_that_matter
from ratchet.tracking.result_table import ResultTable
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.stage_kinds import BUILD_SCENARIO, StageKind, kind_of
from ratchet.tracking.system_metrics import read_system_metrics

MAX_PARAM_CHARS = 500
MAX_KEY_CHARS = 250
MAX_DIGEST_CHARS = 36
RUN_TAG = "ratchet.run_id"
ARM_TAG = "ratchet.arm"
KIND_TAG = "ratchet.kind"

FIRST = "agents"
"""Prefix of headline metrics: pages sort by name, and it comes before all stages' names."""
NUM_DATAPOINTS = "num_datapoints"
_FORBIDDEN = re.compile(r"[^\w\-. :/]")

Metric = tuple[str, int, float, int]


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted path; lists and empty sections stay values."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{path}.")
        else:
            flat[path] = value
    return flat


def read_hyper_params(manifest: RunManifest, arm: str) -> dict[str, Any]:
    """Return the hyper-parameters that an arm's stages have read so far, by dotted path.

    All for old runs, whose manifest does not record them.
    """
    flat = flatten(manifest.arms.get(arm, {}))
    if not manifest.read_parameters and manifest.status != "running":
        return flat
    read = manifest.read_parameters.get(arm, ())
    return {path: value for path, value in flat.items() if path in read}


def run_params(hyper_params: Mapping[str, Any]) -> dict[str, str]:
    """Write hyper-parameters as MLflow's flat texts of at most 500 characters."""
    return {
        metric_key(path): (value if isinstance(value, str) else json.dumps(value))[:MAX_PARAM_CHARS]
        for path, value in flatten(hyper_params).items()
    }


def parameters_yaml(manifest: RunManifest, arm: str) -> str:
    """Write all hyper-parameters of an arm as YAML."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times as fast where it is built
    return str(yaml.dump(manifest.arms.get(arm, {}), Dumper=dumper, sort_keys=False))


def run_tags(manifest: RunManifest, arm: str) -> dict[str, str]:
    """Return the tags that link an MLflow run with the run, its code, its flow and its parents."""
    tags = {
        RUN_TAG: manifest.run_id,
        ARM_TAG: arm,
        "ratchet.status": manifest.status,
        "ratchet.version": manifest.versions.get("ratchet-experiments"),
        "ratchet.parent_run_id": manifest.parent_run_id,
        "ratchet.fork_parent": manifest.fork_parent,
        "ratchet.phases": describe_phases(manifest.arms.get(arm, {})) or None,
        "ratchet.error": manifest.error,
        "ratchet.git_dirty": str(manifest.code.dirty).lower() if manifest.code.commit else None,
        "mlflow.source.git.commit": manifest.code.commit,
        "mlflow.source.git.branch": manifest.code.branch,
        "mlflow.source.name": " ".join(manifest.command) or None,
        "mlflow.source.type": "JOB" if manifest.prefect_ui_url else "LOCAL",
        "mlflow.user": manifest.author,
        "mlflow.note.content": run_note(manifest, arm),
        "prefect.flow_run_id": ",".join(manifest.prefect_flow_run_ids) or None,
    }
    user_tags = manifest.settings.get("tags") or {}
    tags |= {metric_key(name): str(value) for name, value in user_tags.items()}
    return {name: value[:5000] for name, value in tags.items() if value}


def run_note(manifest: RunManifest, arm: str) -> str:
    """Describe an arm in Markdown: its parameters, its status, and the next commands."""
    parameters = manifest.arms.get(arm, {})
    names = ("scenario", "dataset", "interaction_protocol", "trainer", "seed")
    named_values = [
        f"{name} **{parameters[name]}**" for name in names if parameters.get(name) not in (None, "")
    ]
    lines = [
        f"Arm *{arm}* of the experiment *{manifest.name}*: {', '.join(named_values)}.",
        "",
        f"- run `{manifest.run_id}`: {manifest.status}",
        f"- its report: `ratchet report {manifest.run_id} --open`; continue: `ratchet resume"
        f" {manifest.run_id}`; fork from a stage: `ratchet fork {manifest.run_id}`",
    ]
    phases = describe_phases(parameters)
    if phases:
        lines.append(f"- phases, by iterations: {phases}")
    if manifest.flow_run_url:
        lines.append(f"- [its flow run in Prefect]({manifest.flow_run_url})")
    if manifest.error:
        lines += ["", f"```\n{manifest.error}\n```"]
    return "\n".join(lines)


def point_metrics(points: list[MetricPoint], kinds: Sequence[StageKind] = ()) -> list[Metric]:
    """Return (key, step, value, milliseconds) for every value of every point, keys STAGE/NAME.

    Results during training are repeated as :data:`FIRST`/NAME. The sizes of the datasets are left
    out, since they do not change. ``kinds`` are those that the run's plug-ins declare.
    """
    return [
        (metric_key(key), point.iteration, value, int(point.time * 1000))
        for point in points
        for key, value in _keyed(point, kind_of(point.stage, kinds)).items()
    ]


def _keyed(point: MetricPoint, kind: StageKind) -> dict[str, float]:
    """Return a point's values by their keys in mirrors."""
    if kind.headline is None:
        return {
            f"{point.stage}/{name}": value
            for name, value in point.values.items()
            if kind != BUILD_SCENARIO or name.partition("/")[0] != NUM_DATAPOINTS
        }
    matter = metrics_that_matter(point.values, max_count=len(point.values))
    first = {
        f"{FIRST}/{kind.headline}{name.rpartition('/')[2]}": value
        for name, value in matter.items()
        if not name.endswith("loss")
    }
    return first | {f"{point.stage}/{name}": value for name, value in point.values.items()}


def dataset_sizes(points: list[MetricPoint]) -> dict[str, int]:
    """Return the numbers of datapoints of an arm's datasets, by name."""
    return {
        name.partition("/")[2]: int(value)
        for point in points
        if point.stage == BUILD_SCENARIO.name
        for name, value in point.values.items()
        if name.partition("/")[0] == NUM_DATAPOINTS
    }


def final_metrics(
    tables: list[ResultTable], milliseconds: int, num_iterations: int = 0
) -> list[Metric]:
    """Return each table's accuracy with the ends of its interval, keys final/TABLE/NAME.

    Also the evaluator's metrics, and each agent's mean return in games without decisions. The step
    of tests is the number of training iterations, that of tests before training 0.
    """
    metrics: list[Metric] = []
    for table in tables:
        values: dict[str, float] = {}
        if has_decisions(table.columns):
            estimate = accuracy(table.columns)
            values = {"accuracy": estimate.value, "low": estimate.low, "high": estimate.high}
        for name in evaluator_metrics(table.columns):
            estimate = mean_metric(table.columns, name)
            values[name] = estimate.value
            values |= {f"{name}.low": estimate.low, f"{name}.high": estimate.high}
        for agent in agents_by_return(table.columns):
            estimate = mean_return(table.columns, agent)
            values[f"{agent}.return"] = estimate.value
            values |= {f"{agent}.low": estimate.low, f"{agent}.high": estimate.high}
        step = 0 if table.name.startswith("pretrain") else num_iterations
        metrics += [
            (metric_key(f"final/{table.name}/{name}"), step, value, milliseconds)
            for name, value in values.items()
        ]
    return metrics


def system_metrics(folder: RunFolder) -> list[Metric]:
    """Return the system metrics, with a step for each sample; keys system/NAME."""
    return [
        (f"system/{name}", step, value, int(seconds * 1000))
        for step, (seconds, values) in enumerate(read_system_metrics(folder.path))
        for name, value in values.items()
    ]


def run_files(folder: RunFolder, arm: str) -> dict[Path, str]:
    """Return an arm's files with their artifact folders."""
    files = {
        folder.path / "tables" / table.file_name: "tables"
        for table in folder.read_tables()
        if table.arm == arm
    }
    if arm == MAIN_ARM:
        files |= {folder.report_path: "", folder.path / "events.jsonl": ""}
        files[folder.usage_path] = ""
        for path in sorted(folder.artifacts_path.rglob("*")):
            if path.is_file():
                files[path] = path.parent.relative_to(folder.path).as_posix()
    folders_by_arm = (
        folder.transcripts_path,
        folder.rollouts_path,
        folder.videos_path,
        folder.profiles_path,
    )
    for folder_by_arm in folders_by_arm:
        files |= {path: folder_by_arm.name for path in sorted((folder_by_arm / arm).glob("*.*"))}
    return files


def metric_key(name: str) -> str:
    """Return a name that MLflow accepts; changed names get a digest so that none collide."""
    safe = _FORBIDDEN.sub("_", name).strip("/")
    if safe == name and len(name) <= MAX_KEY_CHARS:
        return name
    return f"{safe[: MAX_KEY_CHARS - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
