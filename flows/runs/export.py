"""Export of a run to one file: its folder, stages, custom code and software versions.

The archive of a run is deterministic, byte for byte. It excludes paths and servers of this machine,
which may include passwords.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from flows.runs.references import run_keys, with_inputs
from flows.runs.removed_states import describe_removed
from ratchet.errors import DataError, RatchetError, RunStateError, StoreError
from ratchet.parameters.reading.discovery import named_files
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.archive import Member, write_archive
from ratchet.store.closure import PROJECT_PACKAGES, Closure
from ratchet.store.keys import check_key
from ratchet.store.manifest import MANIFEST_NAME, FileEntry, Manifest, Sha256
from ratchet.store.store import StageStore
from ratchet.tracking.environment import CodeState
from ratchet.tracking.files import standalone_page
from ratchet.tracking.logs import LOG_FILE
from ratchet.tracking.mirrors.base import mirror_files
from ratchet.tracking.run_folder import RunFolder, find_run
from ratchet.tracking.run_lock import runners

if TYPE_CHECKING:
    from ratchet.tracking.manifest import RunManifest


INDEX_NAME = "archive.json"
RUN_FOLDER, CODE_FOLDER, STAGES_FOLDER = "run", "code", "stages"
_Key = Annotated[str, AfterValidator(check_key)]
_LOCAL_SETTINGS = ("home", "runs", "store", "base_dir", "tracking_uri")
_LOCAL_FIELDS: dict[str, object] = {
    "tracking": {},
    "prefect_flow_run_ids": [],
    "prefect_ui_url": None,
    "command": [],
    "started": None,
}


class ArchiveIndex(BaseModel):
    """Index of an archive, ``archive.json``, which is its first file.

    ``files`` are the files of ``run/`` and ``code/`` by path; ``stages`` maps keys to the SHA-256
    of their manifests, which list their files. ``versions`` and ``code`` describe the software
    with which the run was computed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["ratchet-run"] = "ratchet-run"
    format_version: Literal[1] = 1
    run_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$", max_length=200)]
    versions: dict[str, str]
    code: CodeState
    files: dict[str, FileEntry]
    stages: dict[_Key, Sha256]

    def to_bytes(self) -> bytes:
        """Return the index in its canonical form."""
        content = self.model_dump(mode="json")
        return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_bytes(cls, text: bytes, where: object) -> ArchiveIndex:
        """Parse an index; DataError if it is invalid or of a later version."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise DataError(
                f"{where}: {INDEX_NAME} cannot be read by this version of Ratchet: {error}."
            ) from error


class EnvironmentDifference(BaseModel):
    """A difference between the environment of an archived run (``there``) and this one."""

    model_config = ConfigDict(frozen=True)

    name: str
    there: str | None
    here: str | None


def differences(
    there: tuple[dict[str, str], CodeState], here: tuple[dict[str, str], CodeState]
) -> list[EnvironmentDifference]:
    """Compare the versions and commits of two environments."""
    both = [{**versions, "code": _shown(code)} for versions, code in (there, here)]
    return [
        EnvironmentDifference(name=name, there=both[0].get(name), here=both[1].get(name))
        for name in sorted(both[0].keys() | both[1].keys())
        if both[0].get(name) != both[1].get(name)
    ]


def _shown(code: CodeState) -> str:
    if code.commit is None:
        return "no repository"
    return f"{code.commit[:12]}{' with changes' if code.dirty else ''}"


@dataclass(frozen=True)
class ExportedRun:
    """An exported run: its archive, the archive's size in bytes, and the number of stages.

    ``removed`` describes states that the archive lacks, since they were removed to free space.
    """

    run_id: str
    path: Path
    size: int
    num_stages: int
    removed: tuple[str, ...] = ()


def export_run(run: str, path: Path, runs: Path | str) -> ExportedRun:
    """Write a run to an archive.

    Parameters
    ----------
    run
        The run's id, a prefix of it, or its folder.
    path
        The archive; an existing file is replaced atomically.
    runs
        The folder of all runs.
    """
    folder = find_run(runs, run)
    if runners(folder.path):
        raise RunStateError(
            f"export: run {folder.run_id} is running. Wait until it ends, or cancel it:"
            f" `ratchet cancel {folder.run_id}`."
        )
    manifest = folder.manifest
    settings = ExperimentSettings.from_dict(manifest.settings)
    store = StageStore(settings.store_url)
    stages = _stages(store, folder)
    files = [*_run_files(folder, manifest, settings), *_code_files(manifest, settings)]
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
            f"export: {path} cannot be written ({error}). Name a file in an existing, writable"
            " folder with enough free space."
        ) from error
    removed = tuple(describe_removed(store, manifest.stages))
    return ExportedRun(folder.run_id, path, path.stat().st_size, len(stages), removed)


def _stages(store: StageStore, folder: RunFolder) -> list[Manifest]:
    """Return the stages that the run needs, by key; StoreError if a recorded one is missing."""
    stages = {key: store.peek(key) for key in sorted(with_inputs(store, run_keys(folder.path)))}
    missing = [r for r in folder.manifest.stages if stages[r.key] is None]
    if missing:
        names = ", ".join(f"{record.stage} {record.iteration}" for record in missing)
        raise StoreError(
            f"export: {names} of run {folder.run_id} not in {store.location}. Recompute them with"
            f" `ratchet resume {folder.run_id}`."
        )
    return [manifest for manifest in stages.values() if manifest is not None]


def _stage_members(store: StageStore, stages: Iterable[Manifest]) -> Iterator[Member]:
    for manifest in stages:
        path = f"{STAGES_FOLDER}/{manifest.key}"
        yield Member(f"{path}/{MANIFEST_NAME}", manifest.to_bytes())
        folder = store.open(manifest.key, partial=True)
        for name in sorted(manifest.stored_files):
            yield Member(f"{path}/{name}", folder / name, manifest.files[name])


def _run_files(
    folder: RunFolder, manifest: RunManifest, settings: ExperimentSettings
) -> Iterator[tuple[str, Path | bytes]]:
    """Yield the run's files, except locks, temporary files and those of mirrors."""
    left_out = {CODE_FOLDER, LOG_FILE, *mirror_files(settings.mirrors, settings.base_dir)}
    text = json.dumps(portable(manifest).model_dump(mode="json"), indent=1)
    yield f"{RUN_FOLDER}/{MANIFEST_NAME}", f"{text}\n".encode()
    for path in sorted(folder.path.rglob("*")):
        name = path.relative_to(folder.path)
        excluded = any(part.startswith(".") for part in name.parts) or name.parts[0] in left_out
        if path.is_file() and not path.is_symlink() and not excluded and str(name) != MANIFEST_NAME:
            is_report = path == folder.report_path
            content = standalone_page(path).encode() if is_report else path
            yield f"{RUN_FOLDER}/{name.as_posix()}", content


def portable(manifest: RunManifest) -> RunManifest:
    """Return a run's manifest without the fields that are specific to this machine."""
    settings = {n: v for n, v in manifest.settings.items() if n not in _LOCAL_SETTINGS}
    return manifest.model_copy(update={**_LOCAL_FIELDS, "settings": settings})


def _code_files(manifest: RunManifest, settings: ExperimentSettings) -> list[tuple[str, Path]]:
    """List custom modules of parameters and mirrors, with their imports below ``base_dir``."""
    if settings.base_dir is None:
        return []
    base, closure = Path(settings.base_dir).resolve(), Closure()
    for name in named_files([manifest.arms, settings.mirrors]):
        file = (base / Path(name).expanduser()).resolve()
        if file.is_file():
            closure.add_file(file, file.stem)
    closure.follow()
    custom = {
        source.path.resolve()
        for source in closure.sources.values()
        if source.module.partition(".")[0] not in PROJECT_PACKAGES
    }
    below = sorted(path for path in custom if path.is_relative_to(base))
    return [(f"{CODE_FOLDER}/{path.relative_to(base).as_posix()}", path) for path in below]


def _entry(content: Path | bytes) -> FileEntry:
    if isinstance(content, bytes):
        return FileEntry(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    with content.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileEntry(size=content.stat().st_size, sha256=digest)
