"""Pack a run into one file: its folder, all stages that it needs, the user's code, what it ran on.

The same run gives the same bytes. What only this machine knows (its paths and servers) is left
out, and with it what may hold a password.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.runs.archive_index import (
    CODE_FOLDER,
    INDEX_NAME,
    RUN_FOLDER,
    STAGES_FOLDER,
    ArchiveIndex,
)
from flows.runs.references import run_keys, with_inputs
from ratchet.errors import RatchetError, RunStateError, StoreError
from ratchet.parameters.discovery import named_files
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.archive import Member, write_archive
from ratchet.store.closure import PROJECT_PACKAGES, Closure
from ratchet.store.manifest import MANIFEST_NAME, FileEntry
from ratchet.store.store import StageStore
from ratchet.tracking.logs import LOG_FILE
from ratchet.tracking.presence import runners
from ratchet.tracking.run_folder import RunFolder, find_run

if TYPE_CHECKING:
    from ratchet.store.manifest import Manifest
    from ratchet.tracking.manifest import RunManifest

_LOCAL_SETTINGS = ("home", "runs", "store", "base_dir", "tracking_uri")
_LEFT_HERE = (CODE_FOLDER, "tensorboard", "wandb", "mlflow.json", LOG_FILE)
_LOCAL_FIELDS: dict[str, object] = {
    "tracking": {},
    "prefect_flow_run_ids": [],
    "prefect_ui_url": None,
    "command": [],
}


@dataclass(frozen=True)
class ExportedRun:
    """A run that was packed: where to, how large, how many stages."""

    run_id: str
    path: Path
    size: int
    num_stages: int


def export_run(run: str, path: Path, runs: Path | str) -> ExportedRun:
    """Pack a run into a file.

    Parameters
    ----------
    run
        The run's id, its beginning, or its folder.
    path
        The file; one that is there is replaced when all is written.
    runs
        The folder of all runs.

    Raises
    ------
    RunNotFoundError
        If there is no such run.
    RunStateError
        If it is running.
    StoreError
        If a stage that it has recorded is not in the store, or damaged; or the file cannot be
        written.
    """
    folder = find_run(runs, run)
    if runners(folder.path):
        raise RunStateError(
            f"export: run {folder.run_id} is running. Wait for its end, or `ratchet cancel"
            f" {folder.run_id}`."
        )
    manifest = folder.manifest
    settings = ExperimentSettings.from_dict(manifest.settings)
    store = StageStore(settings.store_url)
    stages = _stages(store, folder)
    files = [*_run_files(folder, manifest), *_code_files(manifest, settings)]
    index = ArchiveIndex(
        run_id=folder.run_id,
        versions=manifest.versions,
        code=manifest.code,
        files={name: _entry(content) for name, content in files},
        stages={m.key: hashlib.sha256(m.to_bytes()).hexdigest() for m in stages},
    )
    members = [Member(INDEX_NAME, index.to_bytes())]
    members += [Member(name, content, index.files[name]) for name, content in files]
    try:
        write_archive(path, (*members, *_stage_members(store, stages)))
    except RatchetError:
        raise
    except OSError as error:
        raise StoreError(
            f"export: {path} cannot be written ({error}). Name a file in a folder that is there,"
            " can be written, and has room."
        ) from error
    return ExportedRun(folder.run_id, path, path.stat().st_size, len(stages))


def _stages(store: StageStore, folder: RunFolder) -> list[Manifest]:
    """Return the stages that the run needs, by key; StoreError if one of its own is not there."""
    found = {key: store.peek(key) for key in sorted(with_inputs(store, run_keys(folder.path)))}
    missing = [r for r in folder.manifest.stages if found[r.key] is None]
    if missing:
        names = ", ".join(f"{record.stage} {record.iteration}" for record in missing)
        raise StoreError(
            f"export: {names} of run {folder.run_id} not in {store.place}. Make them again with"
            f" `ratchet resume {folder.run_id}`."
        )
    return [manifest for manifest in found.values() if manifest is not None]


def _stage_members(store: StageStore, stages: Iterable[Manifest]) -> Iterator[Member]:
    for manifest in stages:
        place = f"{STAGES_FOLDER}/{manifest.key}"
        yield Member(f"{place}/{MANIFEST_NAME}", manifest.to_bytes())
        folder = store.open(manifest.key)
        for name in sorted(manifest.files):
            yield Member(f"{place}/{name}", folder / name, manifest.files[name])


def _run_files(folder: RunFolder, manifest: RunManifest) -> Iterator[tuple[str, Path | bytes]]:
    """Go through the run's files but for locks and what a killed writer has left."""
    text = json.dumps(portable(manifest).model_dump(mode="json"), indent=1)
    yield f"{RUN_FOLDER}/{MANIFEST_NAME}", f"{text}\n".encode()
    for path in sorted(folder.path.rglob("*")):
        name = path.relative_to(folder.path)
        aside = any(part.startswith(".") for part in name.parts) or name.parts[0] in _LEFT_HERE
        if path.is_file() and not path.is_symlink() and not aside and str(name) != MANIFEST_NAME:
            yield f"{RUN_FOLDER}/{name.as_posix()}", path


def portable(manifest: RunManifest) -> RunManifest:
    """Leave out of a run's manifest what only this machine knows."""
    settings = {n: v for n, v in manifest.settings.items() if n not in _LOCAL_SETTINGS}
    return manifest.model_copy(update={**_LOCAL_FIELDS, "settings": settings})


def _code_files(manifest: RunManifest, settings: ExperimentSettings) -> list[tuple[str, Path]]:
    """List the user's own modules that the parameters name, and those beside them they import."""
    if settings.base_dir is None:
        return []
    base, closure = Path(settings.base_dir).resolve(), Closure()
    for name in named_files(manifest.arms):
        file = (base / Path(name).expanduser()).resolve()
        if file.is_file():
            closure.add_file(file, file.stem)
    closure.follow()
    own = {
        source.path.resolve()
        for source in closure.sources.values()
        if source.module.partition(".")[0] not in PROJECT_PACKAGES
    }
    below = sorted(path for path in own if path.is_relative_to(base))
    return [(f"{CODE_FOLDER}/{path.relative_to(base).as_posix()}", path) for path in below]


def _entry(content: Path | bytes) -> FileEntry:
    if isinstance(content, bytes):
        return FileEntry(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    with content.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileEntry(size=content.stat().st_size, sha256=digest)
