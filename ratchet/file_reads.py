"""Notes which files Python code opens for reading, in this process and in those that it starts.

An audit hook cannot be removed: it is installed once, and ignores all events while no block notes
files. Child processes append to files in a folder of the process that notes: forked ones have the
hook already, others install it when they import :mod:`ratchet`. Files that other languages open
raise no audit event.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import NamedTuple

_VARIABLE = "RATCHET_FILE_READS"
"""Environment variable of child processes: the process that notes, its folder and the log.

Empty instead of removed: a thread that copies the environment meanwhile would raise KeyError.
"""


class Stamp(NamedTuple):
    """Time of the last change in nanoseconds, and size, of a file when it was opened."""

    changed_ns: int
    size: int


class _Reads:
    """Files below a folder that are opened for reading; of an empty folder, any files."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.stamps: dict[str, Stamp] = {}
        self._written: set[str] = set()

    def add(self, path: str, flags: int) -> Stamp | None:
        """Note a file that is opened; return its stamp if it is read for the first time."""
        if not path.startswith(self.folder) or path in self.stamps or path in self._written:
            return None
        if flags & (os.O_TRUNC | os.O_EXCL):
            self._written.add(path)  # later reads are of content written here
        if flags & os.O_ACCMODE == os.O_WRONLY or path in self._written:
            return None
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return None
        self.stamps[path] = stamp = Stamp(status.st_mtime_ns, status.st_size)
        return stamp


_changes = threading.Lock()
_active: tuple[_Reads, ...] = ()
_owner = os.getpid()
"""The process that notes; in a child process, its parent or an ancestor."""
_log = ""
"""The folder with a file of each child process; empty before any process can need it."""
_installed = False


@contextlib.contextmanager
def noted_reads(folder: str = "") -> Iterator[dict[str, Stamp]]:
    """Note the files below a folder, or all, that any thread opens for reading in the block.

    Yields stamps by absolute path. Those of child processes are added when the block ends, except
    if all files are noted. A file that the block writes before it reads it is left out.
    """
    reads = _Reads(os.path.join(folder, "") if folder else "")
    _start(reads)
    try:
        yield reads.stamps
    finally:
        _stop(reads)
        for path, stamp in _child_reads() if folder else ():
            if path.startswith(reads.folder):
                reads.stamps.setdefault(path, stamp)


def continue_noting() -> None:
    """Note files for the process that started this one, if it does."""
    global _active, _owner, _log
    text = os.environ.get(_VARIABLE)
    if text:
        _owner, _log, folder = json.loads(text)
        _active = (_Reads(folder),)
        _install()


def _start(reads: _Reads) -> None:
    global _active, _owner, _log
    with _changes:
        if reads.folder and os.getpid() != _owner:  # a child process with separate notes
            _owner, _log, _active = os.getpid(), "", ()
        if reads.folder and not _folders():
            _empty_log()
        _active = (*_active, reads)
        _export()
        _install()


def _install() -> None:
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_audit)


def _stop(reads: _Reads) -> None:
    global _active
    with _changes:
        _active = tuple(each for each in _active if each is not reads)
        _export()


def _folders() -> list[str]:
    return [reads.folder for reads in _active if reads.folder]


def _export() -> None:
    """Let processes that are started now note files below the folder of the latest block."""
    folders = _folders()
    os.environ[_VARIABLE] = json.dumps([_owner, _log, folders[-1]]) if folders else ""


def _empty_log() -> None:
    """Create the log, or remove the notes of child processes; they notice and start again."""
    global _log
    if not _log:
        _log = tempfile.mkdtemp(prefix="ratchet-opened-")
        atexit.register(_remove_log)
    for log in os.scandir(_log):
        os.unlink(log)


def _remove_log() -> None:
    if os.getpid() == _owner:
        shutil.rmtree(_log, ignore_errors=True)


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    """Handle an event of the interpreter; an exception here would prevent opening the file."""
    if event != "open" or not _active:
        return
    path, _, flags = arguments
    if isinstance(path, str | bytes | os.PathLike) and isinstance(flags, int):
        with contextlib.suppress(OSError, ValueError):  # no such file, or not a path
            _note(os.path.abspath(os.fsdecode(path)), flags)


def _note(path: str, flags: int) -> None:
    is_child = os.getpid() != _owner
    if is_child and path.startswith(_log):
        return
    log = os.path.join(_log, str(os.getpid()))
    for reads in _active:
        is_logged = is_child and bool(reads.folder)
        if is_logged and path.startswith(reads.folder) and not os.path.exists(log):
            reads.stamps.clear()  # the process that notes has started another block
        stamp = reads.add(path, flags)
        if stamp is not None and is_logged:
            _append(log, json.dumps([path, stamp]) + "\n")


def _append(log: str, line: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _child_reads() -> Iterator[tuple[str, Stamp]]:
    """Iterate over the files that child processes have noted."""
    for log in sorted(os.scandir(_log), key=lambda log: log.name):
        with open(log.path, encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):  # otherwise it is being written
                    path, stamp = json.loads(line)
                    yield path, Stamp(*stamp)
