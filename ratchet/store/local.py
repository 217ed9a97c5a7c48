"""A local folder of finished stages.

``stages/KEY/`` contains a finished stage, ``work/KEY.xxxx/`` an unfinished one (on the same file
system, so that a rename commits it), ``damaged/KEY-n/`` a quarantined one, which did not match its
manifest; ``locks/`` contains the held locks, ``users/`` the notes of runs folders.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ratchet.errors import DamagedStageError, StoreError
from ratchet.store.backend import Backend, FolderFacts
from ratchet.store.keys import is_key
from ratchet.store.locks import FileLock
from ratchet.store.manifest import MANIFEST_NAME, FileEntry, Manifest

_EXISTS = (errno.ENOTEMPTY, errno.EEXIST)
_CONDEMNED = ".condemned"
"""Suffix of a stage that is hidden until it is certain that no run needs it."""


class LocalFolder(Backend):
    """Stages in a local or network folder, which is created at the first write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._checked: dict[str, tuple[object, ...]] = {}

    @property
    def folder(self) -> LocalFolder:
        """The folder with locks and work folders, as of a remote folder: the object itself."""
        return self

    @property
    def location(self) -> str:
        """The folder's path."""
        return str(self.root)

    def stage_path(self, key: str) -> Path:
        """Return the folder of a finished stage."""
        return self.root / "stages" / key

    def prepare(self) -> None:
        """Create missing folders."""
        names = ("stages", "work", "locks", "damaged")
        missing = [name for name in names if not (self.root / name).is_dir()]
        for name in missing:
            (self.root / name).mkdir(parents=True, exist_ok=True)
        if missing:
            sync_folder(self.root)
            sync_folder(self.root.parent)

    def lock(self, name: str) -> FileLock:
        """Return the lock of a key, not yet acquired."""
        return FileLock(self.root / "locks" / f"{name}.lock")

    def make_work(self, name: str) -> Path:
        """Create an empty work folder; the caller holds the lock of that name."""
        return Path(tempfile.mkdtemp(prefix=f"{name}.", dir=self.root / "work"))

    def clean(self) -> int:
        """Remove work folders and locks whose owners have died; count the folders removed."""
        removed = 0
        for path in _children(self.root / "work"):
            lock = self.lock(path.name.partition(".")[0])
            if lock.try_acquire():
                try:
                    removed += not (path.suffix == _CONDEMNED and self._restore(path.stem))
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    lock.release()
        for path in _children(self.root / "locks"):
            lock = FileLock(path)
            if path.suffix == ".lock" and lock.try_acquire():
                lock.release()
        return removed

    def read_manifest(self, key: str) -> bytes | None:
        """Read the manifest's text; None without such a stage."""
        path = self.stage_path(key)
        try:
            if stat.S_ISREG(os.lstat(path / MANIFEST_NAME).st_mode):  # reading a pipe would block
                return (path / MANIFEST_NAME).read_bytes()
            raise DamagedStageError(f"{MANIFEST_NAME} is not a plain file")
        except FileNotFoundError as error:
            if not path.is_dir():
                return None
            raise DamagedStageError(f"{MANIFEST_NAME} is missing") from error
        except (NotADirectoryError, IsADirectoryError) as error:
            raise DamagedStageError(f"{error.filename} has the wrong type") from error

    def read_file(self, manifest: Manifest, name: str) -> bytes | None:
        """Read a file of a stage; None if it is missing."""
        try:
            return (self.stage_path(manifest.key) / name).read_bytes()
        except FileNotFoundError:
            return None

    def stamp(self, key: str) -> object:
        """Return the manifest's times, size and inode."""
        try:
            return _stamp(os.stat(self.stage_path(key) / MANIFEST_NAME))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def fetch(self, key: str, manifest: Manifest, *, fresh: bool = False) -> list[str]:
        """Check the files; those unchanged since the last check are not read again."""
        problems: list[str] = []
        entries = manifest.stored_files
        stamps: list[object] = [entries]
        for name, entry in entries.items():
            stamp, problem = self._inspect(key, name, entry)
            problems += problem
            stamps.append(stamp)
        if problems:
            return problems
        current = tuple(stamps)
        if not fresh and self._checked.get(key) == current:
            return []
        for name, entry in entries.items():
            if hash_file(self.stage_path(key) / name) != entry.sha256:
                problems.append(f"{name} does not have the SHA-256 of its manifest")
        if not problems:
            self._checked[key] = current
        return problems

    def _inspect(self, key: str, name: str, entry: FileEntry) -> tuple[object, list[str]]:
        """Return a file's stamp and its problems, without reading it."""
        try:
            status = os.lstat(self.stage_path(key) / name)
        except (FileNotFoundError, NotADirectoryError):
            return None, [f"{name} is missing"]
        if not stat.S_ISREG(status.st_mode):
            return None, [f"{name} is not a plain file"]
        if status.st_size != entry.size:
            return None, [f"{name} has {status.st_size} bytes, its manifest has {entry.size}"]
        return _stamp(status), []

    def extra_files(self, key: str, manifest: Manifest) -> list[str]:
        """List files in the stage's folder that are not in its manifest."""
        path = self.stage_path(key)
        names = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
        return sorted(names - manifest.files.keys() - {MANIFEST_NAME})

    def publish(self, work: Path, key: str, manifest: Manifest) -> bool:
        """Flush a work folder and rename it to the stage's folder."""
        _write_manifest(work, manifest)
        for folder, _, _ in os.walk(work, topdown=False):
            sync_folder(Path(folder))
        target = self.stage_path(key)
        try:
            os.rename(work, target)
        except OSError as error:
            if error.errno in _EXISTS:
                return False
            raise
        sync_folder(target.parent)
        return True

    def replace_manifest(self, manifest: Manifest) -> bool:
        """Write the manifest into a work folder and rename it over the current one."""
        work, target = self.make_work(manifest.key), self.stage_path(manifest.key)
        try:
            _write_manifest(work, manifest)
            os.rename(work / MANIFEST_NAME, target / MANIFEST_NAME)
        except FileNotFoundError:
            return False
        finally:
            shutil.rmtree(work, ignore_errors=True)
        sync_folder(target)
        return True

    def delete_removed(self, manifest: Manifest) -> None:
        """Delete the removed files that exist."""
        for name in manifest.removed:
            (self.stage_path(manifest.key) / name).unlink(missing_ok=True)

    def put_back(self, work: Path, manifest: Manifest) -> None:
        """Rename the removed files from a work folder into the stage's folder."""
        for name in manifest.removed:
            target = self.stage_path(manifest.key) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(work / name, target)
            sync_folder(target.parent)

    def quarantine(self, key: str) -> str | None:
        """Rename a stage's folder into ``damaged/``."""
        number = 1
        while True:
            target = self.root / "damaged" / f"{key}-{number}"
            if not target.exists():
                break
            number += 1
        self._checked.pop(key, None)
        try:
            self.prepare()
            os.rename(self.stage_path(key), target)
        except FileNotFoundError:
            return None
        return str(target)

    def discard(self, key: str) -> bool:
        """Hide a stage's folder by renaming it, then remove it."""
        self._checked.pop(key, None)
        self.prepare()
        target = self.root / "work" / f"{key}.{secrets.token_hex(8)}"
        try:
            os.rename(self.stage_path(key), target)
        except FileNotFoundError:
            return False
        shutil.rmtree(target, ignore_errors=True)  # clean() removes the rest
        return True

    def keys(self) -> Iterator[str]:
        """List the keys of all stages, sorted."""
        for path in _children(self.root / "stages"):
            if is_key(path.name):
                yield path.name

    def note_use(self, key: str) -> None:
        """Set the time of the stage's folder, which has no other use."""
        now = time.time_ns()  # the file system's own clock lags behind this one
        with contextlib.suppress(OSError):  # of another user, or gone
            os.utime(self.stage_path(key), ns=(now, now))

    def facts(self, key: str, manifest: Manifest | None) -> FolderFacts:
        """Return size and last use of a stage."""
        facts = _facts(self.stage_path(key))
        return facts if manifest is None else facts._replace(size=manifest.size)

    def discard_unless(self, key: str, is_needed: Callable[[float], bool]) -> bool:
        """Hide a stage's folder by renaming it, then restore it if needed, else remove it."""
        condemned = self._condemned(key)
        self.prepare()
        try:
            os.rename(self.stage_path(key), condemned)
        except FileNotFoundError:
            return False
        try:
            keep = is_needed(_last_used(condemned))
        except BaseException:
            self._restore(key)
            raise
        if keep:
            self._restore(key)
            return False
        self._checked.pop(key, None)
        # renamed first, since a partly removed folder must never be restored
        removed = condemned.with_name(f"{key}.{secrets.token_hex(8)}")
        os.rename(condemned, removed)
        shutil.rmtree(removed, ignore_errors=True)
        return True

    def _condemned(self, key: str) -> Path:
        return self.root / "work" / f"{key}{_CONDEMNED}"

    def _restore(self, key: str) -> bool:
        """Restore a condemned stage; False if it has been computed again since."""
        try:
            os.rename(self._condemned(key), self.stage_path(key))
        except OSError as error:
            if error.errno in _EXISTS:
                return False
            raise
        return True

    def abandoned(self) -> Iterator[FolderFacts]:
        """List the work folders whose owners have died; :meth:`clean` removes them."""
        for path in _children(self.root / "work"):
            if self.lock(path.name.partition(".")[0]).is_free():
                yield _facts(path)

    def damaged(self) -> Iterator[FolderFacts]:
        """List the quarantined stages."""
        for path in _children(self.root / "damaged"):
            facts = _facts(path)
            with contextlib.suppress(FileNotFoundError):  # ctime: moved, not written
                facts = facts._replace(last_used=max(facts.last_used, path.stat().st_ctime))
            yield facts

    def remove_damaged(self, name: str) -> None:
        """Remove a quarantined stage."""
        shutil.rmtree(self.root / "damaged" / name, ignore_errors=True)

    def note_names(self) -> list[str]:
        """List the notes of runs folders that use the store."""
        return [path.name for path in _children(self.root / "users") if path.suffix == ".json"]

    def read_note(self, name: str) -> bytes | None:
        """Read a note; None if it does not exist."""
        try:
            return (self.root / "users" / name).read_bytes()
        except FileNotFoundError:
            return None

    def write_note(self, name: str, text: bytes | None) -> None:
        """Write a note to a temporary file and rename it, or remove it."""
        path = self.root / "users" / name
        if text is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{name}.{secrets.token_hex(8)}")
        temporary.write_bytes(text)
        temporary.replace(path)


def seal_files(work: Path) -> dict[str, FileEntry]:
    """Flush a work folder's files to the disk; return path → size and SHA-256, sorted."""
    entries = {}
    for folder, names, files in os.walk(work):
        for name in [*names, *files]:
            path = Path(folder, name)
            relative = path.relative_to(work).as_posix()
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                continue
            if not stat.S_ISREG(mode) or relative == MANIFEST_NAME:
                raise StoreError(
                    f"a stage wrote {relative!r} into its work folder {work}: expected plain files"
                    f" (no links), none of them named {MANIFEST_NAME}. Write a copy, or rename it."
                )
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                size = os.fstat(file.fileno()).st_size
            entries[relative] = FileEntry(size=size, sha256=digest)
    return {name: entries[name] for name in sorted(entries)}


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    with open(folder / MANIFEST_NAME, "xb") as file:
        file.write(manifest.to_bytes())
        file.flush()
        os.fsync(file.fileno())


def hash_file(path: Path) -> str:
    """Compute a file's SHA-256 as hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Flush all files and folders in a folder to the disk."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with open(Path(parent, name), "rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(parent))


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def _children(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except FileNotFoundError:
        return []


def _facts(path: Path) -> FolderFacts:
    """Return facts of a folder or file; one that has gone is empty and used now."""
    size = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                size += os.lstat(os.path.join(folder, name)).st_size
    return FolderFacts(path.name, size, _last_used(path))


def _last_used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()
