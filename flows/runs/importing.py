"""Unpack a run that was packed elsewhere: its stages into the store, its folder among the runs.

All is checked before anything is put anywhere. Stages come first, each whole or not at all, and
the run's folder last, so that a killed import can be done again.
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

from flows.runs.archive_index import (
    CODE_FOLDER,
    INDEX_NAME,
    RUN_FOLDER,
    STAGES_FOLDER,
    ArchiveIndex,
    EnvironmentDifference,
    differences,
)
from flows.runs.exporting import portable
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
from ratchet.store.keys import is_key
from ratchet.store.manifest import MANIFEST_NAME, FileEntry, Manifest
from ratchet.store.store import StageStore
from ratchet.store.users import note_user
from ratchet.tracking.environment import capture_code_state
from ratchet.tracking.files import write_atomically
from ratchet.tracking.manifest import RunManifest
from ratchet.tracking.presence import Presence
from ratchet.tracking.processor import made_with
from ratchet.tracking.run_folder import RunFolder

_MOST_TEXT = 256 * 2**20
_RUN_MANIFEST = f"{RUN_FOLDER}/{MANIFEST_NAME}"
_TABLES_FOLDER = "tables"
_SPARE = 64 * 2**20


@dataclass(frozen=True)
class ImportedRun:
    """A run that was unpacked.

    Attributes
    ----------
    new, found
        How many stages were put into the store, and how many it had.
    other_bytes
        Keys of stages that the store had with other files: they were kept.
    environment
        What is otherwise here than where the run was made.
    has_code
        Whether modules of the user's came with it, which run when stages are made.
    """

    folder: RunFolder
    new: int
    found: int
    other_bytes: tuple[str, ...]
    environment: tuple[EnvironmentDifference, ...]
    has_code: bool


@dataclass(frozen=True)
class _Content:
    """What a checked archive holds."""

    index: ArchiveIndex
    run: RunManifest
    stages: list[Manifest]


def import_run(
    path: Path, settings: ExperimentSettings, base_dir: Path | None = None
) -> ImportedRun:
    """Unpack a run.

    Parameters
    ----------
    path
        What :func:`flows.runs.exporting.export_run` has written.
    settings
        Where home, store and runs are here; with absolute paths.
    base_dir
        Where the user's files are that the run's parameters name; those that came with it if not
        given.

    Raises
    ------
    DataError
        If the file is torn, altered, or no packed run. Nothing is left behind.
    RunStateError
        If there is another run of that name.
    StoreError
        If store or runs folder cannot be written, or have too little space.
    """
    store = StageStore(settings.store_url, lease_seconds=settings.lease_seconds)
    runs = Path(settings.runs)
    with Archive(path) as archive:
        content = _read(archive, path)
        place = runs / content.index.run_id
        _refuse_another(place, content.run)
        store.check_writable()
        _check_space(archive, store)
        with _run_errors(runs), _under_way(runs, store) as scratch:
            new, other = _put_stages(archive, content.stages, store)
            if not place.exists():
                _put_run(archive, content, settings, store, base_dir, scratch)
    here = made_with(), capture_code_state()
    environment = differences((content.index.versions, content.index.code), here)
    has_code = any(name.startswith(f"{CODE_FOLDER}/") for name in content.index.files)
    found = len(content.stages) - new
    return ImportedRun(RunFolder(place), new, found, other, tuple(environment), has_code)


def _read(archive: Archive, path: Path) -> _Content:
    """Read what the archive says of itself, and check that all of it is true."""
    index = ArchiveIndex.from_bytes(archive.read(INDEX_NAME, _MOST_TEXT), path)
    stages = [_read_stage(archive, key, digest, path) for key, digest in index.stages.items()]
    expected = dict(_expected(index, stages))
    extra = archive.sizes.keys() - expected.keys() - {INDEX_NAME, *map(_manifest_name, stages)}
    strange = [name for name in index.files if not _belongs(name)]
    if extra or strange:
        raise DataError(f"{path}: {sorted({*extra, *strange})[0]!r} does not belong into it.")
    for name, entry in expected.items():
        archive.check(name, entry)
    try:
        run = RunManifest.model_validate_json(archive.read(_RUN_MANIFEST, _MOST_TEXT))
        ExperimentSettings.from_dict(dict(run.settings))
    except (ValidationError, ValueError) as error:
        raise DataError(f"{path}: the run's manifest is none ({error}).") from error
    if run.run_id != index.run_id:
        raise DataError(f"{path}: holds run {run.run_id}, but says {index.run_id}.")
    return _Content(index, run, stages)


def _belongs(name: str) -> bool:
    """Return whether a packed run has files of such names: no locks, none in another's way."""
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
        raise DataError(f"{path}: stage {key} is not what its key says. Nothing is read from it.")
    return manifest


def _manifest_name(stage: Manifest) -> str:
    return f"{STAGES_FOLDER}/{stage.key}/{MANIFEST_NAME}"


def _expected(index: ArchiveIndex, stages: list[Manifest]) -> Iterator[tuple[str, FileEntry]]:
    yield from index.files.items()
    for stage in stages:
        for name, entry in stage.files.items():
            yield f"{STAGES_FOLDER}/{stage.key}/{name}", entry


def _refuse_another(place: Path, run: RunManifest) -> None:
    """Raise RunStateError if another run has the place; the same one may be there already."""
    if not place.exists():
        return
    known = RunFolder(place).manifest if (place / MANIFEST_NAME).exists() else None
    if known is None or (known.created, known.arms) != (run.created, run.arms):
        raise RunStateError(
            f"import: {place} is another run. Import into another folder with --runs, or delete it"
            f" first: `ratchet runs --delete {run.run_id}`."
        )


def _check_space(archive: Archive, store: StageStore) -> None:
    needed = sum(archive.sizes.values()) + _SPARE
    free = shutil.disk_usage(store.backend.folder.root).free
    if free < needed:
        raise StoreError(
            f"import: {store.backend.folder.place} has {free:,} bytes free, expected {needed:,}."
            " Free space there, or choose another place with --store."
        )


def _put_stages(
    archive: Archive, stages: list[Manifest], store: StageStore
) -> tuple[int, tuple[str, ...]]:
    """Put stages into the store; return how many are new, and which it has with other files."""
    new, other = 0, []
    for manifest in stages:
        with store.claim(manifest.key) as claim:
            if claim.existing is not None:
                if claim.existing.files != manifest.files:
                    other.append(manifest.key)
                continue
            for name, entry in manifest.files.items():
                source = f"{STAGES_FOLDER}/{manifest.key}/{name}"
                archive.extract(source, entry, claim.workdir / name)
            claim.adopt(manifest)
            new += 1
    return new, tuple(other)


@contextmanager
def _run_errors(runs: Path) -> Iterator[None]:
    """Raise StoreError for what the operating system refuses among the runs."""
    try:
        yield
    except RatchetError:
        raise
    except OSError as error:
        raise StoreError(
            f"import: {runs} cannot be written ({error}). Choose another place with --runs; what is"
            " in the store by then is found there."
        ) from error


@contextmanager
def _under_way(runs: Path, store: StageStore) -> Iterator[Path]:
    """Make a folder aside, and have whoever collects know that stages are put for a run to come."""
    runs.mkdir(parents=True, exist_ok=True)
    note_user(store, runs)
    with tempfile.TemporaryDirectory(dir=runs, prefix=".import-", suffix=".tmp") as name:
        presence = Presence(Path(name))
        try:
            yield Path(name)
        finally:
            presence.release()


def _put_run(
    archive: Archive,
    content: _Content,
    settings: ExperimentSettings,
    store: StageStore,
    base_dir: Path | None,
    scratch: Path,
) -> None:
    """Write the run's folder aside and rename it into place."""
    runs, run_id = Path(settings.runs), content.index.run_id
    code = runs / run_id / CODE_FOLDER
    aside = scratch / run_id
    for name, entry in content.index.files.items():
        top, _, below = name.partition("/")
        place = aside / below if top == RUN_FOLDER else aside / CODE_FOLDER / below
        archive.extract(name, entry, place)
    (aside / _TABLES_FOLDER).mkdir(exist_ok=True)
    files = base_dir or (code if (aside / CODE_FOLDER).is_dir() else None)
    here = {
        "home": settings.home,
        "runs": settings.runs,
        "store": settings.store,
        "base_dir": None if files is None else str(files),
    }
    run = portable(content.run)  # whoever wrote it may have left something in
    manifest = run.model_copy(
        update={
            "settings": {**run.settings, **here},
            "checkpoints": _checkpoints(run, store),
        }
    )
    text = json.dumps(manifest.model_dump(mode="json"), indent=1)
    write_atomically(aside / MANIFEST_NAME, text)
    aside.rename(runs / run_id)


def _checkpoints(run: RunManifest, store: StageStore) -> dict[str, list[str]]:
    """Return where the files of the final states are here; but of stages nothing is named."""

    def here(paths: list[str]) -> Iterator[str]:
        for path in paths:
            key, _, name = path.partition(f"/{STAGES_FOLDER}/")[2].partition("/")
            if is_key(key) and ".." not in name.split("/"):
                yield str(store.backend.folder.stage_path(key) / name)

    return {arm: list(here(paths)) for arm, paths in run.checkpoints.items()}
