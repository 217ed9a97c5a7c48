"""Write a tar archive of a folder that may be changing to standard output.

Run by ``lab.sh backup`` inside a container, which passes this file as standard input:
``python - FOLDER``. Uses only Python's own library.

A stage appears complete, by a rename, so the archive has it completely or not at all. A file that
grows has its length at the time it is opened: readers of journals ignore a last line that is not
complete. A file that is removed is left out. SQLite databases are copied by SQLite, in one state.
"""

from __future__ import annotations

import io
import os
import sqlite3
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

_SQLITE = b"SQLite format 3\0"
_JOURNALS = ("-wal", "-shm", "-journal")
_BUSY_SECONDS = 60.0


def archive(folder: Path, archived: tarfile.TarFile) -> None:
    """Add the content of a folder, with paths relative to it."""
    for path in sorted(_below(folder)):
        name = str(path.relative_to(folder))
        try:
            if path.is_symlink() or not path.is_file():
                archived.add(path, name, recursive=False)
            elif _is_database(path):
                _add_database(path, name, archived)
            elif not _is_database(_database_of(path)):
                _add_file(path, name, archived)
        except FileNotFoundError:  # removed since it was listed
            continue


def _below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *files))


def _database_of(path: Path) -> Path:
    """Return the database of a journal, which SQLite's copy contains; other paths unchanged."""
    for ending in _JOURNALS:
        if path.name.endswith(ending):
            return path.with_name(path.name.removesuffix(ending))
    return path


def _is_database(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _add_database(path: Path, name: str, archived: tarfile.TarFile) -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        url = f"{path.resolve().as_uri()}?mode=rw"
        with (
            closing(sqlite3.connect(url, timeout=_BUSY_SECONDS, uri=True)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
        entry = archived.gettarinfo(str(path), name)
        entry.size = copy.stat().st_size
        with copy.open("rb") as content:
            archived.addfile(entry, content)


def _add_file(path: Path, name: str, archived: tarfile.TarFile) -> None:
    with path.open("rb") as content:
        entry = archived.gettarinfo(fileobj=content, arcname=name)
        entry.type, entry.linkname = tarfile.REGTYPE, ""  # of a hard link, the content
        entry.size = os.fstat(content.fileno()).st_size
        archived.addfile(entry, _Padded(content))


class _Padded(io.RawIOBase):
    """Reads a file, and zeros after its end: one that was truncated keeps the archive readable."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        """Return exactly ``size`` bytes."""
        return self._file.read(size).ljust(size, b"\0")


if __name__ == "__main__":
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as stream:
        archive(Path(sys.argv[1]), stream)
