"""Import of an exported run: its stages into the store, its folder into the runs folder.

The archive is checked before any file is written. Each stage is stored atomically, and the run's
folder is written last, so that an interrupted import can be repeated.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from flows.runs.export import (
    CODE_FOLDER,
    INDEX_NAME,
    RUN_FOLDER,
    STAGES_FOLDER,
    ArchiveIndex,
    EnvironmentDifference,
    differences,
    portable,
)
from ratchet.errors import (
    DamagedStageError,
    DataError,
    RatchetError,
    RunStateError,
    StageKeyError,
    StoreError,
)
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.archive import Archive
from ratchet.store.garbage_collection import note_user
from ratchet.store.keys import is_key
from ratchet.store.manifest import MANIFEST_NAME, Manifest
from ratchet.store.store import StageStore
from ratchet.tracking.environment import capture_code_state, made_with
from ratchet.tracking.files import write_atomically
from ratchet.tracking.manifest import RunManifest
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.run_lock import RunLock

_MOST_TEXT = 256 * 2**20
_RUN_MANIFEST = f"{RUN_FOLDER}/{MANIFEST_NAME}"
_TABLES_FOLDER = "tables"
_SPARE = 64 * 2**20


@dataclass(frozen=True)
class ImportedRun:
    """An imported run.

    Attributes
    ----------
    new, found
        Numbers of stages that were added to the store, and that it already contained.
    other_bytes
        Keys of stages that the store contains with other files, which were not replaced.
    environment
        Differences between this environment and the one in which the run was computed.
    has_code
        Whether the archive contains custom modules, which run when stages are computed.
    """

    folder: RunFolder
    new: int
    num_present: int
    other_bytes: tuple[str, ...]
    environment: tuple[EnvironmentDifference, ...]
    has_code: bool


@dataclass(frozen=True)
class _Content:
    """Content of a checked archive."""

    index: ArchiveIndex
    run: RunManifest
    stages: list[Manifest]


def import_run(
    path: Path, settings: ExperimentSettings, base_dir: Path | None = None
) -> ImportedRun:
    """Import a run from an archive.

    Raises DataError, without writing a file, if the archive is truncated, altered or invalid.

    Parameters
    ----------
    path
        An archive written by :func:`flows.runs.export.export_run`.
    settings
        Home, store and runs folder on this machine, as absolute paths.
    base_dir
        Folder of the custom files that the run's parameters name; by default those in the archive.
    """
    store = StageStore(settings.store_url, lease_seconds=settings.lease_seconds)
    runs = Path(settings.runs)
    with Archive(path) as archive:
        content = _read(archive, path)
        target = runs / content.index.run_id
        _refuse_another(target, content.run)
        store.check_writable()
        _check_space(archive, store)
        with _run_errors(runs), _locked_scratch(runs, store) as scratch:
            new, other = _put_stages(archive, content.stages, store)
            if not target.exists():
                _put_run(archive, content, settings, store, base_dir, scratch)
    import torch  # noqa: F401 -- heavy; made_with describes the libraries of this process

    local = made_with(settings.num_threads), capture_code_state()
    environment = differences((content.index.versions, content.index.code), local)
    has_code = any(name.startswith(f"{CODE_FOLDER}/") for name in content.index.files)
    num_cached = len(content.stages) - new
    return ImportedRun(RunFolder(target), new, num_cached, other, tuple(environment), has_code)


def _read(archive: Archive, path: Path) -> _Content:
    """Read the index, manifests and run of an archive, and check them against its files."""
    index = ArchiveIndex.from_bytes(archive.read(INDEX_NAME, _MOST_TEXT), path)
    stages = [_read_stage(archive, key, digest, path) for key, digest in index.stages.items()]
    expected = dict(index.files)
    for stage in stages:
        for name, entry in stage.stored_files.items():
            expected[f"{STAGES_FOLDER}/{stage.key}/{name}"] = entry
    manifests = {f"{STAGES_FOLDER}/{stage.key}/{MANIFEST_NAME}" for stage in stages}
    extra = archive.sizes.keys() - expected.keys() - manifests - {INDEX_NAME}
    strange = [name for name in index.files if not _belongs(name)]
    if extra or strange:
        raise DataError(f"{path}: unexpected file {sorted({*extra, *strange})[0]!r}.")
    for name, entry in expected.items():
        archive.check(name, entry)
    try:
        run = RunManifest.model_validate_json(archive.read(_RUN_MANIFEST, _MOST_TEXT))
        ExperimentSettings.from_dict(dict(run.settings))
    except (ValidationError, ValueError) as error:
        raise DataError(f"{path}: invalid run manifest: {error}.") from error
    if run.run_id != index.run_id:
        raise DataError(
            f"{path}: contains run {run.run_id}, expected {index.run_id} as in its index."
        )
    return _Content(index, run, stages)


def _belongs(name: str) -> bool:
    """Return whether a name is valid in an archive: no hidden, table or misplaced code files."""
    top, _, below = name.partition("/")
    is_own = below.partition("/")[0] != CODE_FOLDER and below != _TABLES_FOLDER
    return top == CODE_FOLDER or (top == RUN_FOLDER and is_own and "/." not in f"/{below}")


def _read_stage(archive: Archive, key: str, digest: str, path: Path) -> Manifest:
    text = archive.read(f"{STAGES_FOLDER}/{key}/{MANIFEST_NAME}", _MOST_TEXT)
    try:
        manifest = Manifest.from_bytes(text, key)
        is_true = manifest.computed_key() == key and hashlib.sha256(text).hexdigest() == digest
    except (DamagedStageError, StageKeyError) as error:
        raise DataError(f"{path}: stage {key}: {error}") from error
    if not is_true:
        raise DataError(f"{path}: the content of stage {key} does not match its key.")
    return manifest


def _refuse_another(path: Path, run: RunManifest) -> None:
    """Raise RunStateError if the path is a different run; the same run may already exist."""
    if not path.exists():
        return
    existing = RunFolder(path).manifest if (path / MANIFEST_NAME).exists() else None
    if existing is None or (existing.created, existing.arms) != (run.created, run.arms):
        raise RunStateError(
            f"import: {path} is a different run. Import into another folder with --runs-dir, or"
            f" delete that run first: `ratchet runs --delete {run.run_id}`."
        )


def _check_space(archive: Archive, store: StageStore) -> None:
    required = sum(archive.sizes.values()) + _SPARE
    free = shutil.disk_usage(store.backend.folder.root).free
    if free < required:
        raise StoreError(
            f"import: {store.backend.folder.location} has {free:,} bytes free, expected"
            f" {required:,}. Free space there, or choose another store with --store."
        )


def _put_stages(
    archive: Archive, stages: list[Manifest], store: StageStore
) -> tuple[int, tuple[str, ...]]:
    """Add stages to the store; return the number of new ones, and keys stored with other files."""
    new, other = 0, []
    for manifest in stages:
        with store.claim(manifest.key) as claim:
            if claim.existing is not None:
                if claim.existing.files != manifest.files:
                    other.append(manifest.key)
                continue
            for name, entry in manifest.stored_files.items():
                source = f"{STAGES_FOLDER}/{manifest.key}/{name}"
                archive.extract(source, entry, claim.workdir / name)
            claim.adopt(manifest)
            new += 1
    return new, tuple(other)


@contextmanager
def _run_errors(runs: Path) -> Iterator[None]:
    """Convert operating system errors in the runs folder to StoreError."""
    try:
        yield
    except RatchetError:
        raise
    except OSError as error:
        raise StoreError(
            f"import: {runs} cannot be written ({error}). Choose another folder with --runs-dir;"
            " stages that were already added to the store are reused."
        ) from error


@contextmanager
def _locked_scratch(runs: Path, store: StageStore) -> Iterator[Path]:
    """Create a locked scratch folder, so that garbage collection keeps the run's new stages."""
    runs.mkdir(parents=True, exist_ok=True)
    note_user(store, runs)
    with tempfile.TemporaryDirectory(dir=runs, prefix=".import-", suffix=".tmp") as name:
        lock = RunLock(Path(name))
        try:
            yield Path(name)
        finally:
            lock.release()


def _put_run(
    archive: Archive,
    content: _Content,
    settings: ExperimentSettings,
    store: StageStore,
    base_dir: Path | None,
    scratch: Path,
) -> None:
    """Write the run's folder to a scratch folder and move it to the runs folder."""
    runs, run_id = Path(settings.runs), content.index.run_id
    code = runs / run_id / CODE_FOLDER
    staged = scratch / run_id
    for name, entry in content.index.files.items():
        top, _, below = name.partition("/")
        path = staged / below if top == RUN_FOLDER else staged / CODE_FOLDER / below
        archive.extract(name, entry, path)
    (staged / _TABLES_FOLDER).mkdir(exist_ok=True)
    files = base_dir or (code if (staged / CODE_FOLDER).is_dir() else None)
    local = {
        "home": settings.home,
        "runs": settings.runs,
        "store": settings.store,
        "base_dir": None if files is None else str(files),
    }
    run = portable(content.run)  # the archive may have been edited
    manifest = run.model_copy(
        update={
            "settings": {**run.settings, **local},
            "checkpoints": _checkpoints(run, store),
        }
    )
    text = json.dumps(manifest.model_dump(mode="json"), indent=1)
    write_atomically(staged / MANIFEST_NAME, text)
    staged.rename(runs / run_id)


def _checkpoints(run: RunManifest, store: StageStore) -> dict[str, list[str]]:
    """Return the paths of the final states' files in this store; other paths are dropped."""

    def local(paths: list[str]) -> Iterator[str]:
        for path in paths:
            key, _, name = path.partition(f"/{STAGES_FOLDER}/")[2].partition("/")
            if is_key(key) and ".." not in name.split("/"):
                yield str(store.backend.folder.stage_path(key) / name)

    return {arm: list(local(paths)) for arm, paths in run.checkpoints.items()}
