"""Stages at any fsspec URL, with checked copies in a local folder.

Object stores have no rename, so the manifest is written last: a stage without one is not there.
Claims exclude each other on one machine only. Two machines that make the same stage at once both
do the work, and the first manifest stays; should their uploads have mixed, the check of SHA-256
finds it, and the stage is made again.
"""

from __future__ import annotations

import contextlib
import posixpath
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from ratchet.errors import DamagedStageError, MissingPackageError, ParameterError
from ratchet.store.backend import Backend, FolderFacts
from ratchet.store.keys import is_key
from ratchet.store.local import LocalFolder, seal_files
from ratchet.store.manifest import MANIFEST_NAME, Manifest

_DOWNLOADS = 2  # tries before a wrong SHA-256 is held against the store and not the wire


class RemoteFolder(Backend):
    """Stages below an fsspec URL, e.g. ``s3://bucket/ratchet`` or ``memory://store``.

    ``copies`` is a local folder for locks, work in progress and copies of what was used.
    """

    def __init__(self, url: str, copies: LocalFolder) -> None:
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

    def read_manifest(self, key: str) -> bytes | None:
        """Read the manifest's text; None if there is none (perhaps an upload was cut off)."""
        try:
            return bytes(self._fs.cat_file(self._path("stages", key, MANIFEST_NAME)))
        except FileNotFoundError:
            return None

    def stamp(self, key: str) -> object:
        """Return what the file system knows of the manifest: size, times, tags."""
        self._fs.invalidate_cache()
        try:
            return str(self._fs.ukey(self._path("stages", key, MANIFEST_NAME)))
        except FileNotFoundError:
            return None

    def fetch(self, key: str, manifest: Manifest, *, fresh: bool = False) -> list[str]:
        """Check the copy, downloading what is not there or not sound."""
        copies = self._copies
        copies.prepare()
        lock = copies.lock(f"{key}-fetch")
        lock.acquire()
        try:
            if not fresh and self._copy_is_sound(key, manifest):
                return []
            problems: list[str] = []
            for _ in range(_DOWNLOADS):
                copies.discard(key)
                problems = self._download(key, manifest)
                if not problems:
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
            for name in manifest.files:
                (work / name).parent.mkdir(parents=True, exist_ok=True)
                try:
                    self._fs.get_file(self._path("stages", key, name), str(work / name))
                except FileNotFoundError:
                    return [f"{name} is missing"]
            problems = _differences(work, manifest)
            if not problems:
                self._copies.publish(work, key, manifest)
            return problems
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def extra_files(self, key: str, manifest: Manifest) -> list[str]:
        """List files that lie below the stage's URL and not in its manifest."""
        base = self._path("stages", key)
        self._fs.invalidate_cache()
        names = {posixpath.relpath(path, base) for path in self._fs.find(base)}
        return sorted(names - manifest.files.keys() - {MANIFEST_NAME})

    def publish(self, work: Path, key: str, manifest: Manifest) -> bool:
        """Upload the files, look at their sizes, upload the manifest; keep a local copy."""
        base = self._path("stages", key)
        self._fs.invalidate_cache()
        if self.read_manifest(key) is not None:
            return False
        if self._fs.exists(base):  # an upload that was cut off
            self._fs.rm(base, recursive=True)
        for name, entry in manifest.files.items():
            path = posixpath.join(base, name)
            self._fs.makedirs(posixpath.dirname(path), exist_ok=True)
            self._fs.put_file(str(work / name), path)
            self._fs.invalidate_cache()
            size = self._fs.info(path)["size"]
            if size != entry.size:
                raise OSError(f"{path} has {size} bytes after the upload of {entry.size}")
        if self.read_manifest(key) is not None:  # another machine was faster
            return False
        self._fs.makedirs(base, exist_ok=True)
        self._fs.pipe_file(posixpath.join(base, MANIFEST_NAME), manifest.to_bytes())
        self._copies.discard(key)
        self._copies.publish(work, key, manifest)
        return True

    def set_aside(self, key: str) -> str | None:
        """Move a stage's files into ``damaged/``, and drop the copy."""
        self._fs.invalidate_cache()
        source, number = self._path("stages", key), 1
        if not self._fs.exists(source):
            return None
        while self._fs.exists(self._path("damaged", f"{key}-{number}")):
            number += 1
        target = self._path("damaged", f"{key}-{number}")
        self._fs.makedirs(self._path("damaged"), exist_ok=True)
        self._fs.mv(source, target, recursive=True)
        self._copies.discard(key)
        return str(self._fs.unstrip_protocol(target))

    def discard(self, key: str) -> bool:
        """Remove the manifest, then the files, then the copy."""
        self._fs.invalidate_cache()
        self._copies.discard(key)
        base = self._path("stages", key)
        if not self._fs.exists(base):
            return False
        if self.read_manifest(key) is not None:
            self._fs.rm_file(posixpath.join(base, MANIFEST_NAME))
        if self._fs.exists(base):
            self._fs.rm(base, recursive=True)
        return True

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
        size = sum(int(info.get("size") or 0) for info in found.values())
        try:
            newest = max((self._fs.modified(name).timestamp() for name in found), default=0.0)
        except (NotImplementedError, FileNotFoundError, KeyError):
            newest = time.time()
        return FolderFacts(posixpath.basename(path), size, newest)

    def discard_unless(self, key: str, wanted: Callable[[float], bool]) -> bool:
        """Ask and remove: nothing can be moved out of the way at once here."""
        try:
            text = self.read_manifest(key)
            manifest = None if text is None else Manifest.from_bytes(text, key)
        except DamagedStageError:
            manifest = None
        return not wanted(self.facts(key, manifest).last_used) and self.discard(key)

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
        try:
            return bytes(self._fs.cat_file(self._path("users", name)))
        except FileNotFoundError:
            return None

    def write_note(self, name: str, text: bytes | None) -> None:
        """Write or remove a small file."""
        if text is None:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._path("users", name))
            return
        self._fs.makedirs(self._path("users"), exist_ok=True)
        self._fs.pipe_file(self._path("users", name), text)


def _differences(work: Path, manifest: Manifest) -> list[str]:
    """Return which downloaded files are not those of the manifest."""
    found = seal_files(work)
    return [
        f"{name} does not have the size and SHA-256 of its manifest"
        for name, entry in manifest.files.items()
        if found[name] != entry
    ]
