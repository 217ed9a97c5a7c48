"""Status of a study before it starts: its sweeps are valid, and how many runs have finished."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from flows.studies.steps import Step
from flows.sweeps.members import read_sweep_file, resolve_file_sweep
from ratchet.tracking.run_folder import MANIFEST_FILE, RunFolder
from ratchet.tracking.sweep_folder import read_own_sweep


@dataclass(frozen=True)
class Progress:
    """Finished runs of a sweep, and their mean duration in seconds if there are some."""

    num_finished: int
    seconds: float | None


def check_sweep(step: Step) -> None:
    """Resolve all members of a sweep; ParameterError if one is invalid or a value has no effect."""
    if not step.sweep:
        return
    file, spec, _ = read_sweep_file(step.command[2], step.assignments)
    resolve_file_sweep(file, spec, step.sweep)


def read_progress(step: Step, runs: str) -> Progress:
    """Read the finished runs of a step's sweep from their folders."""
    record = read_own_sweep(Path(runs) / step.sweep) if step.sweep else None
    folders = [] if record is None else _finished(runs, (each.run_id for each in record.members))
    manifests = [folder.manifest for folder in folders]
    seconds = [each.finished - each.created for each in manifests if each.finished is not None]
    return Progress(len(folders), fmean(seconds) if seconds else None)


def _finished(runs: str, run_ids: Iterable[str]) -> list[RunFolder]:
    paths = (Path(runs) / run_id for run_id in run_ids)
    folders = [RunFolder(path) for path in paths if (path / MANIFEST_FILE).exists()]
    return [folder for folder in folders if folder.status == "completed"]


def remaining_seconds(steps: Iterable[Step], runs: str, parallel: int) -> float | None:
    """Estimate the duration of the missing runs; None if a sweep has no finished run."""
    total = 0.0
    for step in steps:
        progress = read_progress(step, runs)
        missing = step.num_runs - progress.num_finished
        if missing <= 0:
            continue
        if progress.seconds is None:
            return None
        total += missing * progress.seconds / parallel
    return total
