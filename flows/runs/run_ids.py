"""Ids of runs: derived from what identifies an experiment, or that of an earlier version's run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flows.runs.references import Fork
from ratchet.errors import RatchetError
from ratchet.parameters.compatibility.converters import upgrade_parameters
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.identity import parameters_digest
from ratchet.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings

_DIGITS = 8


def run_id_for(
    name: str,
    arms: Mapping[str, HyperParameters],
    settings: ExperimentSettings,
    origin: Sequence[str] = (),
) -> str:
    """Return an experiment's run id: that of its run, if an earlier version named it differently.

    ``origin`` adds further inputs, e.g. the parent of a fork.
    """
    run_id = stable_run_id(name, arms, *origin)
    if (Path(settings.runs) / run_id / "manifest.json").exists():
        return run_id
    digest = parameters_digest(arms, origin)
    pattern = f"{_stem(name)}-{'[0-9a-f]' * _DIGITS}/manifest.json"
    for file in sorted(Path(settings.runs).glob(pattern)):
        with suppress(FileNotFoundError):  # deleted by another process
            if _digest_of_run(file, file.stat().st_mtime_ns, settings.base_dir, name) == digest:
                return file.parent.name
    return run_id


def stable_run_id(name: str, arms: Mapping[str, HyperParameters], *origin: str) -> str:
    """Return a new run's id: its name and eight digits of a hash of what identifies it."""
    return f"{_stem(name)}-{parameters_digest(arms, origin)[:_DIGITS]}"


def _stem(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-") or "run"


@cache
def _digest_of_run(file: Path, _modified: int, base_dir: str | None, name: str) -> str | None:
    """Return the digest of the parameters in a run's manifest; None for other experiments.

    Also None if this version cannot read the parameters, or their files are in another folder.
    """
    try:
        folder = RunFolder(file.parent)
        manifest = folder.manifest
        if manifest.name != name or manifest.settings.get("base_dir") != base_dir:
            return None
        fork = Fork.read(folder.path)
        arms = {
            arm: HyperParameters(**upgrade_parameters(data)[0])
            for arm, data in manifest.arms.items()
        }
        return parameters_digest(arms, () if fork is None else fork.origin)
    except RatchetError:
        return None
