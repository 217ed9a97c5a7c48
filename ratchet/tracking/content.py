"""What of a run goes to its mirrors: parameters, tags, metrics and files, as plain values.

Pure functions from a run folder; the mirrors send what they give. Keys and tags are MLflow's.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from ratchet.statistics.results import accuracy
from ratchet.statistics.returns import agents_by_return, has_decisions, mean_return
from ratchet.tracking.manifest import MAIN_ARM, RunManifest
from ratchet.tracking.metrics import MetricPoint
from ratchet.tracking.result_table import ResultTable
from ratchet.tracking.run_folder import RunFolder

MAX_PARAM_CHARS = 500
MAX_KEY_CHARS = 250
MAX_DIGEST_CHARS = 36
RUN_TAG = "ratchet.run_id"
ARM_TAG = "ratchet.arm"
KIND_TAG = "ratchet.kind"

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


def run_params(
    hyper_params: Mapping[str, Any], read: Collection[str] | None = None
) -> dict[str, str]:
    """Write hyper-parameters as MLflow's flat texts of at most 500 characters.

    Only those whose paths are among ``read``; None: all.
    """
    return {
        metric_key(path): _as_text(value)[:MAX_PARAM_CHARS]
        for path, value in flatten(hyper_params).items()
        if read is None or path in read
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
    """Describe an arm in Markdown: what plays what, how it goes, and the commands to go on with."""
    given = manifest.arms.get(arm, {})
    names = ("scenario", "dataset", "interaction_protocol", "trainer", "seed")
    said = [f"{name} **{given[name]}**" for name in names if given.get(name) not in (None, "")]
    lines = [
        f"Arm *{arm}* of the experiment *{manifest.name}*: {', '.join(said)}.",
        "",
        f"- run `{manifest.run_id}`: {manifest.status}",
        f"- its report: `ratchet report {manifest.run_id} --open`; go on: `ratchet resume"
        f" {manifest.run_id}`; go another way from a stage: `ratchet fork {manifest.run_id}`",
    ]
    if manifest.prefect_ui_url and manifest.prefect_flow_run_ids:
        place = f"{manifest.prefect_ui_url.rstrip('/')}/runs/flow-run"
        lines.append(f"- [its flow run in Prefect]({place}/{manifest.prefect_flow_run_ids[-1]})")
    if manifest.error:
        lines += ["", f"```\n{manifest.error}\n```"]
    return "\n".join(lines)


def point_metrics(points: list[MetricPoint]) -> list[Metric]:
    """Return (key, step, value, milliseconds) for every value of every point, keys STAGE/NAME."""
    return [
        (metric_key(f"{point.stage}/{name}"), point.iteration, value, int(point.time * 1000))
        for point in points
        for name, value in point.values.items()
    ]


def final_metrics(tables: list[ResultTable], milliseconds: int) -> list[Metric]:
    """Return each table's accuracy with the ends of its interval, keys final/TABLE/NAME.

    Where nothing is decided, each agent's mean return instead, or beside it.
    """
    metrics: list[Metric] = []
    for table in tables:
        values: dict[str, float] = {}
        if has_decisions(table.columns):
            estimate = accuracy(table.columns)
            values = {"accuracy": estimate.value, "low": estimate.low, "high": estimate.high}
        for agent in agents_by_return(table.columns):
            estimate = mean_return(table.columns, agent)
            values[f"{agent}.return"] = estimate.value
            values |= {f"{agent}.low": estimate.low, f"{agent}.high": estimate.high}
        metrics += [
            (metric_key(f"final/{table.name}/{name}"), 0, value, milliseconds)
            for name, value in values.items()
        ]
    return metrics


def run_files(folder: RunFolder, arm: str) -> dict[Path, str]:
    """List an arm's files and the artifact folders they go to."""
    manifest = folder.manifest
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
    kept_by_arm = (
        folder.transcripts_path,
        folder.rollouts_path,
        folder.videos_path,
        folder.profiles_path,
    )
    for kept in kept_by_arm:
        files |= {path: kept.name for path in sorted((kept / arm).glob("*.*"))}
    files |= {Path(path): "checkpoint" for path in manifest.checkpoints.get(arm, [])}
    return files


def metric_key(name: str) -> str:
    """Make a name one that MLflow takes; changed names get a digest so that none collide."""
    safe = _FORBIDDEN.sub("_", name).strip("/")
    if safe == name and len(name) <= MAX_KEY_CHARS:
        return name
    return f"{safe[: MAX_KEY_CHARS - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
