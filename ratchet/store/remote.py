"""Stages at any fsspec URL, with checked copies in a local folder.

Object stores have no rename, so the manifest is written last: a stage without one is not there.
Files lie below their SHA-256, so that an upload that comes late overwrites nothing but its like.
Where the store can compare and swap, the manifest's place is that of the lease of whoever makes
the stage (:mod:`ratchet.store.leases`); elsewhere claims exclude each other on one machine only,
and of two that make a stage the first manifest stays, as far as a look before the write can tell.
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

from ratchet.errors import DamagedStageError, MissingPackageError, ParameterError
from ratchet.store.backend import Backend, FolderFacts
from ratchet.store.keys import is_key
from ratchet.store.leased_lock import LeasedLock, wait_for
from ratchet.store.leases import Lease, LeaseRecord, Standing
from ratchet.store.local import LocalFolder, seal_files
from ratchet.store.locks import FileLock
from ratchet.store.manifest import MANIFEST_NAME, FileEntry, Manifest
from ratchet.store.objects import Objects, objects_of

_LOGGER = logging.getLogger(__name__)
_DOWNLOADS = 2  # tries before a wrong SHA-256 is held against the store and not the wire


class RemoteFolder(Backend):
    """Stages below an fsspec URL, e.g. ``s3://bucket/ratchet`` or ``memory://store``.

    ``copies`` is a local folder for locks, work in progress and copies of what was used;
    ``lease_seconds`` how long a claim holds of which nothing is heard.
    """

    def __init__(self, url: str, copies: LocalFolder, *, lease_seconds: float) -> None:
        import fsspec
        from fsspec.registry import known_implementations

        self._url = url
        self._copies = copies
        try:
            filesystem, root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            known = known_implementations[fsspec.utils.get_protocol(url)]
            package = known["class"].partition(".")[0]
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
        self._fs: Any = filesystem  # fsspec has no types
        self._root = str(root).rstrip("/")
        self._untried = objects_of(filesystem)
        self._lease_seconds = lease_seconds
        self._leases: dict[str, Lease] = {}
        self._seen: dict[str, Manifest] = {}

    @property
    def folder(self) -> LocalFolder:
        """The folder of locks, work folders and copies."""
        return self._copies

    @property
    def place(self) -> str:
        """The URL."""
        return self._url

    def _path(self, *parts: str) -> str:
        return posixpath.join(self._root, *parts)

    def _manifest_path(self, key: str) -> str:
        return self._path("stages", key, MANIFEST_NAME)

    @cached_property
    def _objects(self) -> Objects | None:
        """What compares and swaps here, if anything does; tried once."""
        objects = self._untried
        if objects is not None and objects.keep_their_word(self._path("conditions.json")):
            return objects
        _LOGGER.warning(
            "%s cannot write on condition (If-None-Match, If-Match), so that claims hold on one"
            " machine only: two that need the same stage at once may both make it, and the first"
            " stays. Start them one after the other, or use a store on S3.",
            self._url,
        )
        return None

    def keeps_conditions(self) -> bool:
        """Return whether claims hold across machines here; tried with an object that goes again."""
        path = self._path(f"conditions-{secrets.token_hex(8)}.json")
        if self._untried is None:
            self._make_folder(self._root)
            self._fs.pipe_file(path, b"{}")
        kept = self._untried is not None and self._untried.keep_their_word(path)
        self._fs.rm_file(path)
        return kept

    @cached_property
    def _copies_id(self) -> str:
        """Tells the folder of local locks from all others."""
        path = self._copies.root / "id"
        if not path.exists():  # of two at once the last stays; the other's is nobody's then
            aside = path.with_name(f".id.{secrets.token_hex(8)}")
            aside.write_text(secrets.token_hex(16))
            aside.replace(path)
        return f"{socket.gethostname()}:{path.read_text()}"

    def lock(self, key: str) -> FileLock | LeasedLock:
        """Return the lock of a key: across machines where the store can compare and swap."""
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
        """Read the manifest's text; None if there is none (perhaps one is being made)."""
        lease = self._leases.get(key)
        if lease is not None and lease.held:  # it stands where the manifest would
            return None
        text = self._read(self._manifest_path(key))
        if text is not None and LeaseRecord.from_bytes(text) is None:
            try:
                Manifest.from_bytes(text, key)
            except DamagedStageError:  # it may have been damaged on its way
                text = self._read(self._manifest_path(key))
        return None if text is None or LeaseRecord.from_bytes(text) is not None else text

    def _read(self, path: str) -> bytes | None:
        if self._untried is not None:
            stored = self._untried.read(path)
            return None if stored is None else stored.text
        try:
            return bytes(self._fs.cat_file(path))
        except FileNotFoundError:
            return None

    def stamp(self, key: str) -> object:
        """Return None: a look costs a request, as reading does."""
        return None

    def has_copy(self, key: str) -> bool:
        """Return whether there is a sound copy of what this process has found or made."""
        manifest = self._seen.get(key)
        return manifest is not None and self._copy_is_sound(key, manifest)

    def fetch(self, key: str, manifest: Manifest, *, fresh: bool = False) -> list[str]:
        """Check the copy, downloading what is not there or not sound."""
        copies = self._copies
        copies.prepare()
        lock = copies.lock(f"{key}-fetch")
        lock.acquire()
        try:
            if not fresh and self._copy_is_sound(key, manifest):
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

    def _copy_is_sound(self, key: str, manifest: Manifest) -> bool:
        try:
            same = self._copies.read_manifest(key) == manifest.to_bytes()
        except DamagedStageError:
            return False
        return same and not self._copies.fetch(key, manifest)

    def _download(self, key: str, manifest: Manifest) -> list[str]:
        work = self._copies.make_work(f"{key}-fetch")
        try:
            for name, entry in manifest.files.items():
                (work / name).parent.mkdir(parents=True, exist_ok=True)
                if not any(
                    self._get(self._path("stages", key, place), work / name)
                    for place in _places(name, entry)
                ):
                    return [f"{name} is missing"]
            problems = _differences(work, manifest)
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
        """List files that lie below the stage's URL and not in its manifest."""
        known = {place for item in manifest.files.items() for place in _places(*item)}
        return sorted(set(self._files(key)) - known - {MANIFEST_NAME})

    def _files(self, key: str) -> list[str]:
        """List all that lies below a stage's URL, relative to it."""
        base = self._path("stages", key)
        self._fs.invalidate_cache()
        return [posixpath.relpath(path, base) for path in self._fs.find(base)]

    def publish(self, work: Path, key: str, manifest: Manifest) -> bool:
        """Upload the files, then the manifest; keep a local copy.

        Who has lost the lease meanwhile waits for whoever took it over.
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
            self._upload(work, key, manifest)
            if lease.commit(manifest.to_bytes()):
                if generation != 1:  # others may have left files, and commit no more
                    self._remove_files(key, self.extra_files(key, manifest))
                return True
            _LOGGER.warning("stage %s: another process has taken it over; waiting for that", key)
            if wait_for(lease) is Standing.FINISHED:
                self._withdraw(key, manifest)
                return False

    def _publish_unleased(self, work: Path, key: str, manifest: Manifest) -> bool:
        if self.read_manifest(key) is not None:
            return False
        self._upload(work, key, manifest)
        if self.read_manifest(key) is not None:  # another machine was faster
            return False
        try:
            self._fs.pipe_file(self._manifest_path(key), manifest.to_bytes(), mode="create")
        except FileExistsError:
            return False
        return True

    def _upload(self, work: Path, key: str, manifest: Manifest) -> None:
        for name, entry in manifest.files.items():
            path = self._path("stages", key, _places(name, entry)[0])
            self._make_folder(posixpath.dirname(path))
            self._fs.put_file(str(work / name), path)
            if self._objects is not None:  # an object is there whole or not at all
                continue
            self._fs.invalidate_cache()
            size = self._fs.info(path)["size"]
            if size != entry.size:
                raise OSError(f"{path} has {size} bytes after the upload of {entry.size}")

    def _make_folder(self, path: str) -> None:
        """Make a folder, but where there are none: a bucket of a wrong name is not made either."""
        if self._untried is None:
            self._fs.makedirs(path, exist_ok=True)

    def _withdraw(self, key: str, manifest: Manifest) -> None:
        """Remove what was uploaded for nothing."""
        text = self.read_manifest(key)
        if text is not None:
            mine = {_places(*item)[0] for item in manifest.files.items()}
            stands = Manifest.from_bytes(text, key)
            self._remove_files(key, sorted(mine & set(self.extra_files(key, stands))))

    def _remove_files(self, key: str, names: list[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._path("stages", key, name))

    def set_aside(self, key: str) -> str | None:
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
        """Take a manifest away, so that nobody finds the stage any more; None if there is none."""
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
        was_there = self._displace(key) is not None
        return self._is_ours(key) and (self._discard_files(key) or was_there)

    def _is_ours(self, key: str) -> bool:
        """Whether nobody else can put a manifest in place now, as far as the store can tell."""
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
        """List the keys of all that lies here, in order."""
        return (name for name in self._names("stages") if is_key(name))

    def _names(self, folder: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(posixpath.basename(str(path).rstrip("/")) for path in found)

    def note_use(self, key: str) -> None:
        """Remember it at the copy; the URL is not told, which would cost a request."""
        self._copies.note_use(key)

    def facts(self, key: str, manifest: Manifest | None) -> FolderFacts:
        """Return size and last use of a stage, here or when it was made, or of a part of one."""
        if manifest is None:
            return self._facts(self._path("stages", key))
        made = datetime.fromisoformat(manifest.created).timestamp()
        if self._copies.stage_path(key).is_dir():
            made = max(made, self._copies.facts(key, manifest).last_used)
        return FolderFacts(key, manifest.size, made)

    def _facts(self, path: str) -> FolderFacts:
        """Look at all files below a path: their size, and when the newest was written."""
        self._fs.invalidate_cache()
        found = self._fs.find(path, detail=True)
        if posixpath.basename(path) in self._leases:  # a lease of this process is no use
            found.pop(posixpath.join(path, MANIFEST_NAME), None)
        size = sum(int(info.get("size") or 0) for info in found.values())
        try:
            newest = max((self._written(*item) for item in found.items()), default=0.0)
        except (NotImplementedError, FileNotFoundError, KeyError):
            newest = time.time()
        return FolderFacts(posixpath.basename(path), size, newest)

    def _written(self, path: str, info: Mapping[str, Any]) -> float:
        """Return when a file was written, which S3 says in its listing."""
        return float((info.get("LastModified") or self._fs.modified(path)).timestamp())

    def discard_unless(self, key: str, wanted: Callable[[float], bool]) -> bool:
        """Take the manifest away, ask, and put it back or remove the files."""
        text = self._displace(key)
        if not self._is_ours(key):
            return False
        try:
            manifest = None if text is None else Manifest.from_bytes(text, key)
        except DamagedStageError:
            manifest = None
        facts = self.facts(key, manifest)
        try:
            keep = wanted(facts.last_used)
        except BaseException:
            self._reprieve(key, text)
            raise
        if keep:
            self._reprieve(key, text)
            return False
        self._discard_files(key)
        return True

    def _reprieve(self, key: str, text: bytes | None) -> None:
        if text is None:
            return
        if key in self._leases:
            self._leases[key].commit(text)
        else:
            self._fs.pipe_file(self._manifest_path(key), text)

    def damaged(self) -> Iterator[FolderFacts]:
        """List the stages that were set aside."""
        return (self._facts(self._path("damaged", name)) for name in self._names("damaged"))

    def remove_damaged(self, name: str) -> None:
        """Remove a stage that was set aside."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._path("damaged", name), recursive=True)

    def note_names(self) -> list[str]:
        """List what says who uses the store."""
        return self._names("users")

    def read_note(self, name: str) -> bytes | None:
        """Read a note; None if there is none."""
        return self._read(self._path("users", name))

    def write_note(self, name: str, text: bytes | None) -> None:
        """Write or remove a small file."""
        if text is None:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._path("users", name))
            return
        self._make_folder(self._path("users"))
        self._fs.pipe_file(self._path("users", name), text)


def _places(name: str, entry: FileEntry) -> tuple[str, str]:
    """Return where a file lies in its stage's folder, and where earlier versions have put it."""
    return f"{entry.sha256}/{name}", name


def _differences(work: Path, manifest: Manifest) -> list[str]:
    """Return which downloaded files are not those of the manifest."""
    found = seal_files(work)
    return [
        f"{name} does not have the size and SHA-256 of its manifest"
        for name, entry in manifest.files.items()
        if found[name] != entry
    ]
