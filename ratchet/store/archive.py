"""Zip archives whose bytes are all checked before any member is read.

Members are stored uncompressed, in a fixed order and with a fixed time, so that equal content
gives equal bytes. The archive's comment is the SHA-256 of all bytes before it, which detects
truncated or altered files. A forged archive can have a correct digest; so names, kinds and sizes
are checked as well, and no file gets its name from an archive.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import stat
import struct
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Self

from ratchet.errors import DataError, StoreError
from ratchet.store.manifest import FileEntry

_EPOCH = (1980, 1, 1, 0, 0, 0)
_PLAIN_FILE = stat.S_IFREG | 0o644
_CHUNK = 2**20
_UNLOCKED_SECONDS = 1.0
"""A writer locks its file within this time."""
_DIGITS = 64
_MAX_NAME_BYTES = 255  # of a file's name, in all common file systems
_MAX_MEMBERS = 1_000_000
_UNREADABLE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, struct.error)
"""Errors that ``zipfile`` raises for invalid archives."""


class Member:
    """Member of an archive to be written: a name, and a file or its content."""

    def __init__(self, name: str, source: Path | bytes, expected: FileEntry | None = None) -> None:
        self.name = name
        self._source = source
        self._expected = expected

    @property
    def size(self) -> int:
        """Bytes of the content."""
        source = self._source
        return len(source) if isinstance(source, bytes) else source.stat().st_size

    def write(self, target: IO[bytes]) -> None:
        """Write the content; StoreError if it does not match the expected entry."""
        digest, size = hashlib.sha256(), 0
        for chunk in self._chunks():
            target.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        if self._expected not in (None, FileEntry(size=size, sha256=digest.hexdigest())):
            raise StoreError(f"{self._source!s} does not match its manifest: it is damaged.")

    def _chunks(self) -> Iterator[bytes]:
        if isinstance(self._source, bytes):
            yield self._source
            return
        with self._source.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk


def write_archive(path: Path, members: Iterable[Member]) -> None:
    """Write an archive with its digest at the end, atomically: to a temporary file, renamed."""
    for leftover in abandoned_archives(path.parent, path.name):
        leftover.unlink(missing_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w+b") as file:
            fcntl.flock(handle, fcntl.LOCK_EX)  # released by the system if this process is killed
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for member in members:
                    info = zipfile.ZipInfo(member.name, _EPOCH)
                    info.external_attr = _PLAIN_FILE << 16
                    info.create_system = 3  # on every system
                    info.file_size = member.size
                    with archive.open(info, "w") as target:
                        member.write(target)
                archive.comment = b"0" * _DIGITS
            digest = _digest(file)
            file.seek(-_DIGITS, os.SEEK_END)
            file.write(digest)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def abandoned_archives(folder: Path, name: str = "*.ratchet.zip") -> list[Path]:
    """List the temporary files of killed processes that were writing an archive in a folder."""
    pattern = f".{name}.*.tmp" if name.startswith("*") else f".{glob.escape(name)}.*.tmp"
    return [path for path in folder.glob(pattern) if path.is_file() and not _is_locked(path)]


def _is_locked(path: Path) -> bool:
    try:
        if time.time() - path.stat().st_mtime < _UNLOCKED_SECONDS:
            return True
        with path.open("rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked, gone, or of another user
        return True
    return False


class Archive:
    """Checked archive, open for reading; closed when the ``with`` block ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                digest = _digest(file)
                file.seek(-min(_DIGITS, path.stat().st_size), os.SEEK_END)
                is_intact = file.read() == digest
        except OSError as error:
            raise self._refusal(f"it cannot be read: {error.strerror or error}") from error
        if not is_intact:
            raise self._refusal("it is truncated or altered: wrong SHA-256")
        try:
            self._zip = zipfile.ZipFile(path)
        except _UNREADABLE as error:
            raise self._refusal(f"it is not a zip archive: {error}") from error
        try:
            self._members = self._checked(self._zip.infolist())
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._zip.close()

    @property
    def sizes(self) -> Mapping[str, int]:
        """Size of each member in bytes."""
        return {name: info.file_size for name, info in self._members.items()}

    def read(self, name: str, at_most: int) -> bytes:
        """Read a small member; DataError if it is missing or larger than ``at_most`` bytes."""
        info = self._members.get(name)
        if info is None or info.file_size > at_most:
            size = "missing" if info is None else f"{info.file_size:,} bytes"
            raise self._refusal(f"{name}: {size}, expected at most {at_most:,} bytes")
        return b"".join(self._chunks(name))

    def check(self, name: str, entry: FileEntry) -> None:
        """Read a member; DataError if its size or SHA-256 is different."""
        self._copy(name, entry, None)

    def extract(self, name: str, entry: FileEntry, path: Path) -> None:
        """Write a member to a new file; DataError as :meth:`check`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            self._copy(name, entry, file)

    def _copy(self, name: str, entry: FileEntry, target: IO[bytes] | None) -> None:
        if name not in self._members or self._members[name].file_size != entry.size:
            raise self._refusal(f"{name} is missing or does not have {entry.size:,} bytes")
        digest = hashlib.sha256()
        for chunk in self._chunks(name):
            digest.update(chunk)
            if target is not None:
                target.write(chunk)
        if digest.hexdigest() != entry.sha256:
            raise self._refusal(f"{name} does not match its SHA-256")

    def _chunks(self, name: str) -> Iterator[bytes]:
        try:
            with self._zip.open(self._members[name]) as file:
                while chunk := file.read(_CHUNK):
                    yield chunk
        except (*_UNREADABLE, EOFError) as error:
            raise self._refusal(f"{name} cannot be read: {error}") from error

    def _checked(self, infos: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
        """Return the members by name; raise for members that :func:`write_archive` never writes."""
        if len(infos) > _MAX_MEMBERS:
            raise self._refusal(f"it has {len(infos):,} members, expected {_MAX_MEMBERS:,} at most")
        members: dict[str, zipfile.ZipInfo] = {}
        for info in infos:
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind != stat.S_IFREG or info.flag_bits & 1:
                raise self._refusal(f"{info.filename!r} is not a plain file")
            if not _is_safe(info.filename) or info.filename in members:
                raise self._refusal(
                    f"{info.filename!r} is repeated, or not the name of a file within it"
                )
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise self._refusal(f"{info.filename!r} is compressed")
            members[info.filename] = info
        for name in members:
            for above in PurePosixPath(name).parents:
                if str(above) in members:
                    raise self._refusal(f"{str(above)!r} is a file, and {name!r} is below it")
        total, size = sum(i.file_size for i in members.values()), self._path.stat().st_size
        if total > size:
            raise self._refusal(f"its members have {total:,} bytes, the file {size:,}")
        return members

    def _refusal(self, problem: str) -> DataError:
        return DataError(f"{self._path}: {problem}. No member is read; get the file again.")


def _is_safe(name: str) -> bool:
    """Return whether a name is a relative path that no system reads as one outside the archive."""
    pure = PurePosixPath(name)
    if any(len(os.fsencode(part)) > _MAX_NAME_BYTES for part in pure.parts):
        return False
    plain = not pure.is_absolute() and ".." not in pure.parts and str(pure) == name
    return plain and name != "." and name.isprintable() and "\\" not in name and ":" not in name


def _digest(file: IO[bytes]) -> bytes:
    """Return the SHA-256 of all bytes before the digest at the end of a file, in hexadecimal."""
    left = max(file.seek(0, os.SEEK_END) - _DIGITS, 0)
    file.seek(0)
    digest = hashlib.sha256()
    while left > 0 and (chunk := file.read(min(_CHUNK, left))):
        digest.update(chunk)
        left -= len(chunk)
    return digest.hexdigest().encode()
