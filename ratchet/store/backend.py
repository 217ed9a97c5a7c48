"""Interface of the store's backends, local folders and fsspec URLs, and their errors."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ratchet.errors import RatchetError, StoreError

if TYPE_CHECKING:
    from ratchet.store.locks import FileLock, LeasedLock
    from ratchet.store.manifest import Manifest

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_NOT_A_FOLDER = frozenset({errno.ENOTDIR, errno.EEXIST, errno.EISDIR})
DEVICE_ERRORS = FULL_DISK | {errno.EROFS, errno.EFBIG, errno.EIO}
"""Errors caused by the device or file system, not by the code that writes."""


class FolderFacts(NamedTuple):
    """Name and bytes of a folder, and the time when it was last used or written."""

    name: str
    size: int
    last_used: float


class Backend(ABC):
    """Storage of finished stages; a stage is complete or absent."""

    @property
    @abstractmethod
    def location(self) -> str:
        """The path or URL, for messages."""

    @abstractmethod
    def lock(self, key: str) -> FileLock | LeasedLock:
        """Return the lock of a key, not yet acquired; valid across machines where possible."""

    @abstractmethod
    def read_manifest(self, key: str) -> bytes | None:
        """Read the manifest's text; None without such a stage.

        Raises DamagedStageError if the stage's folder has no manifest.
        """

    @abstractmethod
    def read_file(self, manifest: Manifest, name: str) -> bytes | None:
        """Read a small file of a stage, unchecked; None if it is missing."""

    @abstractmethod
    def stamp(self, key: str) -> object:
        """Return a value that changes whenever the manifest's text does.

        None without a manifest, or if checking is no cheaper than reading.
        """

    def copied_manifest(self, key: str) -> Manifest | None:
        """Return the manifest if the files can be used without access to the URL."""
        return None

    @abstractmethod
    def fetch(self, key: str, manifest: Manifest, *, fresh: bool = False) -> list[str]:
        """Download missing files to the local folder, and check sizes and SHA-256.

        Removed files are ignored.

        Parameters
        ----------
        fresh
            Read all files again, even if they were checked before and look unchanged.

        Returns
        -------
        list of str
            The problems; empty if the files are intact.
        """

    @abstractmethod
    def extra_files(self, key: str, manifest: Manifest) -> list[str]:
        """List files in the stage's folder that are not in its manifest."""

    @abstractmethod
    def publish(self, work: Path, key: str, manifest: Manifest) -> bool:
        """Move a work folder's files into the store as a finished stage, atomically.

        False if another process has stored the stage first; that one stays.
        """

    @abstractmethod
    def replace_manifest(self, manifest: Manifest) -> bool:
        """Replace the manifest of a finished stage atomically; False if the stage has gone."""

    @abstractmethod
    def delete_removed(self, manifest: Manifest) -> None:
        """Delete the removed files that still exist."""

    @abstractmethod
    def put_back(self, work: Path, manifest: Manifest) -> None:
        """Move the removed files from a work folder into the stage."""

    @abstractmethod
    def quarantine(self, key: str) -> str | None:
        """Move a stage to the damaged ones; return its new location, or None if it is gone."""

    @abstractmethod
    def discard(self, key: str) -> bool:
        """Remove a stage; return whether it existed."""

    @abstractmethod
    def keys(self) -> Iterator[str]:
        """List the keys of all complete and partial stages, sorted."""

    @abstractmethod
    def note_use(self, key: str) -> None:
        """Record that a stage was used now, if that costs next to nothing."""

    @abstractmethod
    def facts(self, key: str, manifest: Manifest | None) -> FolderFacts:
        """Return size and last use of a stage; ``manifest`` is None for a partial one.

        A stage of unknown age counts as used now.
        """

    @abstractmethod
    def discard_unless(self, key: str, is_needed: Callable[[float], bool]) -> bool:
        """Remove a stage whose lock is held, unless ``is_needed``; return whether it did.

        ``is_needed`` gets the time of the last use. It is called while no process can find the
        stage, where the backend supports that. An interruption leaves the stage complete or gone.
        """

    @abstractmethod
    def damaged(self) -> Iterator[FolderFacts]:
        """List the quarantined stages."""

    @abstractmethod
    def remove_damaged(self, name: str) -> None:
        """Remove a quarantined stage."""

    @abstractmethod
    def note_names(self) -> list[str]:
        """List the notes of runs folders that use the store."""

    @abstractmethod
    def read_note(self, name: str) -> bytes | None:
        """Read a note; None if it does not exist."""

    @abstractmethod
    def write_note(self, name: str, text: bytes | None) -> None:
        """Write a note atomically; None removes it."""


def store_error(action: str, location: object, error: OSError) -> StoreError:
    """Describe a failure of the file system below a store; ``action`` completes "could not"."""
    code = errno.errorcode.get(error.errno or 0, type(error).__name__)
    reason = error.strerror or str(error) or type(error).__name__
    at = (
        f" (at {error.filename})" if error.filename and str(error.filename) != str(location) else ""
    )
    result = StoreError(
        f"could not {action} in {location}: {reason} [{code}]{at}. No partial stage counts as"
        f" finished. {_advice(error.errno)} Then run the same command again: finished stages"
        " are cached."
    )
    result.errno = error.errno
    return result


@contextlib.contextmanager
def store_errors(action: str, location: object) -> Iterator[None]:
    """Raise :class:`StoreError` for errors of the system or S3's client inside the block."""
    try:
        yield
    except RatchetError:
        raise
    except OSError as error:
        raise store_error(action, location, error) from error
    except Exception as error:
        s3_errors = sys.modules.get("botocore.exceptions")  # never imported for this
        if s3_errors is None or not isinstance(error, s3_errors.BotoCoreError):
            raise
        wrapped = OSError(errno.EIO, f"{type(error).__name__}: {error}")
        raise store_error(action, location, wrapped) from error


def _advice(number: int | None) -> str:
    alternative = "or choose another location with the setting `store`."
    if number in FULL_DISK:
        return f"Free space there, {alternative}"
    if number in _FORBIDDEN:
        return f"Make it writable for you, {alternative}"
    if number in _NOT_A_FOLDER:
        return f"A file has the name of an expected folder: move it, {alternative}"
    if number == errno.EFBIG:
        return "A limit on file sizes is in force (`ulimit -f`): raise it."
    if number in (errno.EMFILE, errno.ENFILE):
        return "Too many files are open: raise the limit (`ulimit -n`)."
    hint = f" ({os.strerror(number)})" if number else ""
    return f"Fix the cause{hint}, {alternative}"
