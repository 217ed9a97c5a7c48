"""Stages at any fsspec URL, with checked copies in a local folder.

Object stores have no rename, so the manifest is written last: a stage without one does not exist.
Paths of files start with their SHA-256, so that a late upload overwrites only an equal file. Where
the store supports compare-and-swap, the manifest replaces the lease of the process that computes
the stage (:mod:`ratchet.store.leases`). Elsewhere claims exclude each other on one machine only,
and a read before the write protects the first manifest, which is not atomic.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ratchet.errors import DamagedStageError, MissingPackageError, ParameterError
from ratchet.store.backend import Backend, FolderFacts
from ratchet.store.keys import is_key
from ratchet.store.leases import Lease, LeaseRecord, LeaseStatus
from ratchet.store.local import LocalFolder, seal_files
from ratchet.store.locks import FileLock, LeasedLock, wait_for
from ratchet.store.manifest import MANIFEST_NAME, FileEntry, Manifest
from ratchet.store.objects import Objects, objects_for

_LOGGER = logging.getLogger(__name__)
_DOWNLOADS = 2  # attempts before a wrong SHA-256 counts as damage at the store


class RemoteFolder(Backend):
    """Stages below an fsspec URL, e.g. ``s3://bucket/ratchet`` or ``memory://store``.

    ``copies`` is a local folder for locks, unfinished work and copies of used stages;
    ``lease_seconds`` the time after which a claim expires without a renewal.
    """

    def __init__(self, url: str, copies: LocalFolder, *, lease_seconds: float) -> None:
        import fsspec
        from fsspec.registry import known_implementations

        self._url = url
        self._copies = copies
        try:
            filesystem, root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            name = known_implementations[fsspec.utils.get_protocol(url)]["class"]
            package = name.partition(".")[0]
            raise MissingPackageError(
                f"settings.store: {url} needs {package}, not installed here. Install it:"
                f" pip install {package}"
            ) from error
        except ValueError as error:
            schemes = ", ".join(["a folder", "s3://…", "gs://…", "abfs://…", "memory://…"])
            raise ParameterError(
                f"settings.store: got {url!r}, expected {schemes} or another URL of fsspec"
                f" ({error})."
            ) from error
        except OSError as error:  # some file systems connect when they are created
            parts = urlsplit(url)  # without a login
            raise ParameterError(
                f"settings.store: could not connect to {parts.scheme}://{parts.hostname}: {error}."
                " Check the URL and the network."
            ) from error
        self._fs: Any = filesystem  # fsspec has no types
        self._root = str(root).rstrip("/")
        self._untested = objects_for(filesystem)
        self._lease_seconds = lease_seconds
        self._leases: dict[str, Lease] = {}
        self._seen: dict[str, Manifest] = {}

    @property
    def folder(self) -> LocalFolder:
        """The folder of locks, work folders and copies."""
        return self._copies

    @property
    def location(self) -> str:
        """The URL."""
        return self._url

    def _path(self, *parts: str) -> str:
        return posixpath.join(self._root, *parts)

    def _manifest_path(self, key: str) -> str:
        return self._path("stages", key, MANIFEST_NAME)

    def _file_path(self, key: str, name: str, entry: FileEntry) -> str:
        return self._path("stages", key, _path_in_stage(name, entry))

    @cached_property
    def _objects(self) -> Objects | None:
        """The objects that support compare-and-swap, if any; tested once."""
        objects = self._untested
        if objects is not None and objects.supports_conditions(self._path("conditions.json")):
            return objects
        _LOGGER.warning(
            "%s does not support conditional writes (If-None-Match, If-Match), so claims exclude"
            " processes of one machine only: two machines may compute the same stage concurrently,"
            " and the first result stays. Start runs sequentially, or use a store on S3.",
            self._url,
        )
        return None

    def supports_conditions(self) -> bool:
        """Return whether claims exclude other machines; tested with a temporary object."""
        path = self._path(f"conditions-{secrets.token_hex(8)}.json")
        if self._untested is None:
            self._make_folder(self._root)
            self._fs.pipe_file(path, b"{}")
        is_supported = self._untested is not None and self._untested.supports_conditions(path)
        self._fs.rm_file(path)
        return is_supported

    @cached_property
    def _copies_id(self) -> str:
        """Identifies the folder of local locks."""
        path = self._copies.root / "id"
        if not path.exists():  # of two concurrent writes the last one stays
            temporary = path.with_name(f".id.{secrets.token_hex(8)}")
            temporary.write_text(secrets.token_hex(16))
            temporary.replace(path)
        return f"{socket.gethostname()}:{path.read_text()}"

    def lock(self, key: str) -> FileLock | LeasedLock:
        """Return the lock of a key, across machines if the store supports compare-and-swap."""
        local = self._copies.lock(key)
        if self._objects is None:
            return local
        lease = Lease(
            self._objects,
            self._manifest_path(key),
            seconds=self._lease_seconds,
            copies=self._copies_id,
        )
        return LeasedLock(local, lease, key, self._leases)

    def read_manifest(self, key: str) -> bytes | None:
        """Read the manifest's text; None if it does not exist, or a lease has its path."""
        lease = self._leases.get(key)
        if lease is not None and lease.held:  # it has the path of the manifest
            return None
        text = self._read(self._manifest_path(key))
        if text is not None and LeaseRecord.from_bytes(text) is None:
            try:
                Manifest.from_bytes(text, key)
            except DamagedStageError:  # perhaps damaged during the download
                text = self._read(self._manifest_path(key))
        return None if text is None or LeaseRecord.from_bytes(text) is not None else text

    def _read(self, path: str) -> bytes | None:
        if self._untested is not None:
            stored = self._untested.read(path)
            return None if stored is None else stored.text
        try:
            return bytes(self._fs.cat_file(path))
        except FileNotFoundError:
            return None

    def read_file(self, manifest: Manifest, name: str) -> bytes | None:
        """Read a file of the local copy, or else at the URL; None if it is missing."""
        copy = self._copies.read_file(manifest, name)
        if copy is not None:
            return copy
        return self._read(self._file_path(manifest.key, name, manifest.files[name]))

    def stamp(self, key: str) -> object:
        """Return None: checking costs a request, as reading does."""
        return None

    def copied_manifest(self, key: str) -> Manifest | None:
        """Return the manifest of a stage that this process used, if its copy is intact."""
        manifest = self._seen.get(key)
        is_intact = manifest is not None and self._is_copy_intact(key, manifest)
        return manifest if is_intact else None

    def fetch(self, key: str, manifest: Manifest, *, fresh: bool = False) -> list[str]:
        """Check the copy; download it if it is missing or damaged."""
        copies = self._copies
        copies.prepare()
        lock = copies.lock(f"{key}-fetch")
        lock.acquire()
        try:
            if not fresh and self._is_copy_intact(key, manifest):
                self._seen[key] = manifest
                return []
            problems: list[str] = []
            for _ in range(_DOWNLOADS):
                copies.discard(key)
                problems = self._download(key, manifest)
                if not problems:
                    self._seen[key] = manifest
                    break
            return problems
        finally:
            lock.release()

    def _is_copy_intact(self, key: str, manifest: Manifest) -> bool:
        try:
            same = self._copies.read_manifest(key) == manifest.to_bytes()
        except DamagedStageError:
            return False
        return same and not self._copies.fetch(key, manifest)

    def _download(self, key: str, manifest: Manifest) -> list[str]:
        work = self._copies.make_work(f"{key}-fetch")
        try:
            for name, entry in manifest.stored_files.items():
                (work / name).parent.mkdir(parents=True, exist_ok=True)
                if not self._get(self._file_path(key, name, entry), work / name):
                    return [f"{name} is missing"]
            entries = seal_files(work)
            problems = [
                f"{name} does not have the size and SHA-256 of its manifest"
                for name, entry in manifest.stored_files.items()
                if entries[name] != entry
            ]
            if not problems:
                self._copies.publish(work, key, manifest)
            return problems
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _get(self, path: str, target: Path) -> bool:
        try:
            self._fs.get_file(path, str(target))
        except FileNotFoundError:
            target.unlink(missing_ok=True)
            return False
        return True

    def extra_files(self, key: str, manifest: Manifest) -> list[str]:
        """List files below the stage's URL that are not in its manifest."""
        expected = {_path_in_stage(*item) for item in manifest.files.items()}
        return sorted(set(self._files(key)) - expected - {MANIFEST_NAME})

    def _files(self, key: str) -> list[str]:
        """List all files below a stage's URL, relative to it."""
        base = self._path("stages", key)
        self._fs.invalidate_cache()
        return [posixpath.relpath(path, base) for path in self._fs.find(base)]

    def publish(self, work: Path, key: str, manifest: Manifest) -> bool:
        """Upload the files, then the manifest; save a local copy.

        If the lease was lost, wait for the process that has taken it over.
        """
        if not self._publish_once(work, key, manifest):
            return False
        self._copies.discard(key)
        self._copies.publish(work, key, manifest)
        self._seen[key] = manifest
        return True

    def _publish_once(self, work: Path, key: str, manifest: Manifest) -> bool:
        lease = self._leases.get(key)
        if lease is None:
            return self._publish_unleased(work, key, manifest)
        while True:
            generation = lease.generation
            self._upload(work, key, manifest.files)
            if lease.commit(manifest.to_bytes()):
                if generation != 1:  # earlier holders may have uploaded files
                    self._remove_files(key, self.extra_files(key, manifest))
                return True
            _LOGGER.warning("stage %s: another process has taken it over, waiting for that", key)
            if wait_for(lease) is LeaseStatus.FINISHED:
                self._withdraw(key, manifest)
                return False

    def _publish_unleased(self, work: Path, key: str, manifest: Manifest) -> bool:
        if self.read_manifest(key) is not None:
            return False
        self._upload(work, key, manifest.files)
        if self.read_manifest(key) is not None:  # another machine was first
            return False
        try:
            self._fs.pipe_file(self._manifest_path(key), manifest.to_bytes(), mode="create")
        except FileExistsError:
            return False
        return True

    def _upload(self, work: Path, key: str, entries: Mapping[str, FileEntry]) -> None:
        for name, entry in entries.items():
            path = self._file_path(key, name, entry)
            self._make_folder(posixpath.dirname(path))
            self._fs.put_file(str(work / name), path)
            if self._objects is not None:  # writes of objects are atomic
                continue
            self._fs.invalidate_cache()
            size = self._fs.info(path)["size"]
            if size != entry.size:
                raise OSError(f"{path} has {size} bytes after the upload of {entry.size}")

    def _make_folder(self, path: str) -> None:
        """Create a folder, except in object stores: never create a bucket of a wrong name."""
        if self._untested is None:
            self._fs.makedirs(path, exist_ok=True)

    def _withdraw(self, key: str, manifest: Manifest) -> None:
        """Remove uploaded files that the stored manifest does not contain."""
        text = self.read_manifest(key)
        if text is not None:
            uploaded = {_path_in_stage(*item) for item in manifest.files.items()}
            stored = Manifest.from_bytes(text, key)
            self._remove_files(key, sorted(uploaded & set(self.extra_files(key, stored))))

    def _remove_files(self, key: str, names: list[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._path("stages", key, name))

    def replace_manifest(self, manifest: Manifest) -> bool:
        """Overwrite the manifest, by compare-and-swap if supported."""
        path, text = self._manifest_path(manifest.key), manifest.to_bytes()
        if self._objects is None:
            self._fs.pipe_file(path, text)
            return True
        stored = self._objects.read(path)
        if stored is None or LeaseRecord.from_bytes(stored.text) is not None:
            return False
        return self._objects.replace(path, text, stored.tag) is not None

    def delete_removed(self, manifest: Manifest) -> None:
        """Delete the removed files, and the copy."""
        paths = [_path_in_stage(name, manifest.files[name]) for name in manifest.removed]
        self._remove_files(manifest.key, paths)
        self._drop_copy(manifest.key)

    def put_back(self, work: Path, manifest: Manifest) -> None:
        """Upload the removed files."""
        self._upload(work, manifest.key, {name: manifest.files[name] for name in manifest.removed})

    def quarantine(self, key: str) -> str | None:
        """Move a stage's files into ``damaged/``, and drop the copy."""
        text = self._displace(key)
        if text is None:
            return None
        number = 1
        while self._fs.exists(self._path("damaged", f"{key}-{number}")):
            number += 1
        target = self._path("damaged", f"{key}-{number}")
        for name in self._files(key):
            if name != MANIFEST_NAME:
                path = posixpath.join(target, name)
                self._make_folder(posixpath.dirname(path))
                self._fs.mv(self._path("stages", key, name), path)
        self._make_folder(target)
        self._fs.pipe_file(posixpath.join(target, MANIFEST_NAME), text)
        self._drop_copy(key)
        return str(self._fs.unstrip_protocol(target))

    def _displace(self, key: str) -> bytes | None:
        """Remove a manifest, so that no process finds the stage; return its text, if any."""
        lease = self._leases.get(key)
        if lease is None:
            text = self.read_manifest(key)
            if text is not None:
                self._fs.rm_file(self._manifest_path(key))
            return text
        assert self._objects is not None
        stored = None if lease.held else self._objects.read(self._manifest_path(key))
        if stored is None or LeaseRecord.from_bytes(stored.text) is not None:
            return None
        return stored.text if lease.displace(stored) else None

    def _drop_copy(self, key: str) -> None:
        self._seen.pop(key, None)
        self._copies.discard(key)

    def discard(self, key: str) -> bool:
        """Remove the manifest, then the files, then the copy."""
        existed = self._displace(key) is not None
        return self._may_write(key) and (self._discard_files(key) or existed)

    def _may_write(self, key: str) -> bool:
        """Return whether no other process is known to be able to write the manifest now."""
        lease = self._leases.get(key)
        return lease is None or lease.held

    def _discard_files(self, key: str) -> bool:
        self._drop_copy(key)
        names = [name for name in self._files(key) if name != MANIFEST_NAME]
        if key in self._leases:
            self._remove_files(key, names)
            self._leases[key].remove()
        elif names:
            self._fs.rm(self._path("stages", key), recursive=True)
        return bool(names)

    def keys(self) -> Iterator[str]:
        """List the keys of all complete and partial stages, sorted."""
        return (name for name in self._names("stages") if is_key(name))

    def _names(self, folder: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            paths = self._fs.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(posixpath.basename(str(path).rstrip("/")) for path in paths)

    def note_use(self, key: str) -> None:
        """Record the use at the copy only, since a write to the URL costs a request."""
        self._copies.note_use(key)

    def facts(self, key: str, manifest: Manifest | None) -> FolderFacts:
        """Return size and last use of a stage: its creation or its copy's last use."""
        if manifest is None:
            return self._facts(self._path("stages", key))
        used = datetime.fromisoformat(manifest.created).timestamp()
        if self._copies.stage_path(key).is_dir():
            used = max(used, self._copies.facts(key, manifest).last_used)
        return FolderFacts(key, manifest.size, used)

    def _facts(self, path: str) -> FolderFacts:
        """Return the total size of the files below a path, and when the newest was written."""
        self._fs.invalidate_cache()
        files = self._fs.find(path, detail=True)
        if posixpath.basename(path) in self._leases:  # a lease of this process is not a use
            files.pop(posixpath.join(path, MANIFEST_NAME), None)
        size = sum(int(info.get("size") or 0) for info in files.values())
        try:
            newest = max((self._written(*item) for item in files.items()), default=0.0)
        except (NotImplementedError, FileNotFoundError, KeyError):
            newest = time.time()
        return FolderFacts(posixpath.basename(path), size, newest)

    def _written(self, path: str, info: Mapping[str, Any]) -> float:
        """Return when a file was written, from S3's listing if possible."""
        return float((info.get("LastModified") or self._fs.modified(path)).timestamp())

    def discard_unless(self, key: str, is_needed: Callable[[float], bool]) -> bool:
        """Remove the manifest, then restore it if the stage is needed, else remove the files."""
        text = self._displace(key)
        if not self._may_write(key):
            return False
        try:
            manifest = None if text is None else Manifest.from_bytes(text, key)
        except DamagedStageError:
            manifest = None
        facts = self.facts(key, manifest)
        try:
            keep = is_needed(facts.last_used)
        except BaseException:
            self._restore(key, text)
            raise
        if keep:
            self._restore(key, text)
            return False
        self._discard_files(key)
        return True

    def _restore(self, key: str, text: bytes | None) -> None:
        if text is None:
            return
        if key in self._leases:
            self._leases[key].commit(text)
        else:
            self._fs.pipe_file(self._manifest_path(key), text)

    def damaged(self) -> Iterator[FolderFacts]:
        """List the quarantined stages."""
        return (self._facts(self._path("damaged", name)) for name in self._names("damaged"))

    def remove_damaged(self, name: str) -> None:
        """Remove a quarantined stage."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._path("damaged", name), recursive=True)

    def note_names(self) -> list[str]:
        """List the notes of runs folders that use the store."""
        return self._names("users")

    def read_note(self, name: str) -> bytes | None:
        """Read a note; None if it does not exist."""
        return self._read(self._path("users", name))

    def write_note(self, name: str, text: bytes | None) -> None:
        """Write or remove a note."""
        if text is None:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._path("users", name))
            return
        self._make_folder(self._path("users"))
        self._fs.pipe_file(self._path("users", name), text)


def _path_in_stage(name: str, entry: FileEntry) -> str:
    return f"{entry.sha256}/{name}"
