"""The stage store: find what is finished, claim what is to be done, commit what was done.

Tasks stand on it. A stage is there whole or not at all; it is checked when it is used; of those
who want to make the same one at once, one works and the others wait and take the result.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import DamagedStageError, StoreError
from ratchet.store.backend import Backend
from ratchet.store.claim import Claim
from ratchet.store.failures import UNWRITABLE, store_error, store_errors
from ratchet.store.keys import check_key
from ratchet.store.local import LocalFolder
from ratchet.store.manifest import Manifest

_LOGGER = logging.getLogger(__name__)
_DEFAULT_RESERVE = 32 * 2**20
_REMEMBERED_SECONDS = 600.0
LEASE_SECONDS = 60.0
"""How long a claim holds of which nothing is heard; it is renewed every quarter of that."""


@dataclass(frozen=True)
class Damage:
    """A stage that did not match its manifest, what was wrong, and where it was moved to."""

    key: str
    problems: tuple[str, ...]
    moved_to: str


class StageStore:
    """Finished stages by key, in a local folder or at any fsspec URL.

    Parameters
    ----------
    url
        A folder's path, ``file://…``, or an fsspec URL such as ``s3://bucket/prefix``. Nothing
        is made there before the first claim.
    copies
        For a URL: the local folder for copies, locks and work in progress; by default
        ``$XDG_CACHE_HOME/ratchet/store/…`` (``~/.cache``). Processes of one machine that share
        a URL should share it: a claim of one that has died is then free at once.
    on_damage
        Called for every damaged stage that was set aside, after the warning is logged.
    reserve_bytes
        A claim that would start work is refused when less than this is free on the local disk:
        better before the work than after it.
    lease_seconds
        For a URL: how long others wait for a claim of which they hear nothing.
    """

    def __init__(
        self,
        url: str | Path,
        *,
        copies: str | Path | None = None,
        on_damage: Callable[[Damage], None] | None = None,
        reserve_bytes: int = _DEFAULT_RESERVE,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self.on_damage = on_damage
        self.reserve_bytes = reserve_bytes
        self._backend = _backend(url, copies, lease_seconds)
        self._index: dict[str, tuple[object, Manifest]] = {}
        self._missing: dict[str, float] = {}
        self._lately: dict[str, tuple[float, Manifest]] = {}
        self._made: set[str] = set()
        self._cleaned = False

    @property
    def place(self) -> str:
        """The folder's path or the URL."""
        return self._backend.place

    @property
    def backend(self) -> Backend:
        """Where the stages lie, for those who keep the store."""
        return self._backend

    @property
    def size(self) -> int:
        """Bytes in the files of all finished stages."""
        return sum(manifest.size for manifest in self.iterate())

    def peek(self, key: str, *, lately: bool = False) -> Manifest | None:
        """Read a stage's manifest without looking at its files; None if there is no sound one.

        For plans and listings: cheap, changes nothing, and proves nothing about the files.
        ``lately``: at a URL, what was there some minutes ago, or not, is answer enough.
        """
        check_key(key)
        if lately:
            read = self._known_lately(key)
            if read is not None or self._was_missing(key):
                return read
        with store_errors(f"read stage {key}", self.place):
            stamp = self._backend.stamp(key)
            known = self._index.get(key)
            if stamp is not None and known is not None and known[0] == stamp:
                return known[1]
            try:
                manifest = self._read(key)
            except DamagedStageError as error:
                _LOGGER.warning("stage %s in %s is damaged: %s", key, self.place, error)
                return None
        if manifest is not None and stamp is not None:
            self._index[key] = (stamp, manifest)
        return manifest

    def find(self, key: str, *, again: bool = False) -> Manifest | None:
        """Find a finished stage and check it.

        Sizes and SHA-256 are checked when a process uses a stage for the first time, and again
        when its files' times or sizes have changed. A damaged stage is set aside and logged, and
        counts as not there. At a URL the files are downloaded to be checked, and what was not
        there counts so for a while: a claim looks again.

        Parameters
        ----------
        again
            Look, though it was not there a moment ago: somebody has said that it is now.

        Raises
        ------
        StageKeyError
            If ``key`` is none.
        StoreError
            If the store can't be read.
        """
        check_key(key)
        return None if not again and self._was_missing(key) else self._find(key)

    def _was_missing(self, key: str) -> bool:
        """Return whether a look at a URL, which costs a request, has lately found nothing."""
        return (
            key not in self._made
            and self._backend.folder is not self._backend
            and time.monotonic() - self._missing.get(key, -math.inf) < _REMEMBERED_SECONDS
        )

    def _known_lately(self, key: str) -> Manifest | None:
        """Return what this has lately read or made; nothing where a look costs no request."""
        since, manifest = self._lately.get(key, (-math.inf, None))
        return manifest if time.monotonic() - since < _REMEMBERED_SECONDS else None

    def _remember(self, key: str, manifest: Manifest, since: float) -> None:
        if self._backend.folder is not self._backend:
            self._lately[key] = (since, manifest)

    def _forget(self, key: str) -> None:
        self._index.pop(key, None)
        self._lately.pop(key, None)

    def _find(self, key: str) -> Manifest | None:
        manifest, problems = self._check(key)
        if not problems:
            if manifest is not None:
                self._backend.note_use(key)
            return manifest
        folder = self._backend.folder
        with store_errors(f"set aside the damaged stage {key}", self.place):
            folder.prepare()
            lock = self._backend.lock(key)
            if not lock.try_acquire():  # somebody works on it, and looks for himself
                _LOGGER.warning("stage %s in %s is damaged: %s", key, self.place, problems)
                return None
            try:
                return self._find_locked(key)
            finally:
                lock.release()

    def open(self, key: str) -> Path:
        """Return the local folder with a finished stage's files, checked. They must not be changed.

        Raises
        ------
        StoreError
            If there is no such stage, or it was damaged.
        """
        if not self._has_copy(key) and self._find(key) is None:
            raise StoreError(
                f"stage {key} is not in {self.place} (or was damaged and is set aside)."
                " Run the same command again: it will be made again."
            )
        return self._backend.folder.stage_path(key)

    def _has_copy(self, key: str) -> bool:
        check_key(key)
        with store_errors(f"read stage {key}", self.place):
            return self._backend.has_copy(key)

    @contextlib.contextmanager
    def claim(
        self,
        key: str,
        *,
        missed: bool = False,
        wait_seconds: float | None = None,
        cancelled: threading.Event | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> Iterator[Claim]:
        """Take a stage's result, or the sole right to make it.

        Blocks while another thread, process or run holds the claim: call it in a thread from
        asynchronous code. A holder that was killed holds nothing, on another machine after
        ``lease_seconds``. Claims are not re-entrant.

        Parameters
        ----------
        missed
            That :meth:`find` has just not found it, and need not look again.
        wait_seconds
            How long to wait for another holder at most; for ever when None.
        cancelled
            Ends the waiting when set.
        on_wait
            Called once with words on the holder, if there is one.

        Yields
        ------
        Claim
            With ``existing`` set if the stage is finished; otherwise with a ``workdir`` to write
            files into and ``commit`` to call. Left without a commit, nothing is stored.

        Raises
        ------
        StoreError
            If the store can't be written or read, has too little space, or the waiting ended.
        """
        check_key(key)
        existing = None if missed else self.find(key)
        if existing is not None:
            yield Claim(self._backend, key, existing, None)
            return
        with store_errors(f"claim stage {key}", self.place):
            self._prepare()
            lock = self._backend.lock(key)
            held = lock.acquire(wait_seconds=wait_seconds, cancelled=cancelled, on_wait=on_wait)
        if not held:
            raise StoreError(
                f"stage {key} in {self.place} is being made by {lock.holder()};"
                " stopped waiting for it. Run the same command again later."
            )
        try:
            existing = self._find_locked(key)
            work = None if existing is not None else self._start_work(key)
            claim = Claim(self._backend, key, existing, work)
            try:
                yield claim
            except OSError as error:
                if work is None or not _is_about(error, work):
                    raise
                raise store_error(f"write the files of stage {key}", work, error) from error
            finally:
                if claim.existing is not None:
                    self._made.add(key)
                    self._remember(key, claim.existing, time.monotonic())
                if work is not None and lock.held:  # not in a forked child
                    shutil.rmtree(work, ignore_errors=True)
        finally:
            lock.release()

    def iterate(self) -> Iterator[Manifest]:
        """Go through the manifests of all finished stages, by key; files are not looked at."""
        with store_errors("list the stages", self.place):
            keys = list(self._backend.keys())
        for key in keys:
            manifest = self.peek(key)
            if manifest is not None:
                yield manifest

    def verify(self, key: str) -> list[str]:
        """Read all of a stage's files again and say what is wrong; empty if it is sound.

        Changes nothing. Files that the manifest does not know are named too.

        Raises
        ------
        StoreError
            If there is no such stage.
        """
        manifest, problems = self._check(key, fresh=True)
        if problems:
            return problems
        if manifest is None:
            raise StoreError(f"stage {key} is not in {self.place}: nothing to verify.")
        with store_errors(f"verify stage {key}", self.place):
            extra = self._backend.extra_files(key, manifest)
        return [f"{name} is not in the manifest" for name in extra]

    def remove(self, key: str) -> bool:
        """Remove a finished stage; say whether it was there. Waits for a holder of its claim."""
        check_key(key)
        with store_errors(f"remove stage {key}", self.place):
            self._prepare()
            lock = self._backend.lock(key)
            lock.acquire()
            try:
                self._forget(key)
                self._made.discard(key)
                return self._backend.discard(key)
            finally:
                lock.release()

    def clean(self) -> int:
        """Remove what killed processes have left; count the work folders removed."""
        with store_errors("clean", self.place):
            return self._backend.folder.clean()

    def check_writable(self) -> None:
        """Write, flush and remove a small file.

        Raises
        ------
        StoreError
            If that fails, or less than ``reserve_bytes`` is free.
        """
        folder = self._backend.folder
        with store_errors("write", folder.place):
            self._prepare()
            self._check_space()
            name = f"probe-{secrets.token_hex(8)}"
            lock = folder.lock(name)
            lock.acquire()  # else who cleans takes it for what a dead process has left
            try:
                work = folder.make_work(name)
                try:
                    with open(work / "probe", "wb") as file:
                        file.write(bytes(4096))
                        file.flush()
                        os.fsync(file.fileno())
                finally:
                    shutil.rmtree(work, ignore_errors=True)
            finally:
                lock.release()

    def _prepare(self) -> None:
        self._backend.folder.prepare()
        if not self._cleaned:
            self._cleaned = True
            self._backend.folder.clean()

    def _start_work(self, key: str) -> Path:
        folder = self._backend.folder
        with store_errors(f"start stage {key}", folder.place):
            self._check_space()
            return folder.make_work(key)

    def _check_space(self) -> None:
        folder = self._backend.folder
        free = shutil.disk_usage(folder.root).free
        if free < self.reserve_bytes:
            raise StoreError(
                f"{folder.place} has {free:,} bytes free, expected at least"
                f" {self.reserve_bytes:,} before a stage starts. Free space there, or choose"
                " another place with the setting `store`."
            )

    def _read(self, key: str) -> Manifest | None:
        begin = time.monotonic()
        text = self._backend.read_manifest(key)
        if text is None:
            self._missing[key] = begin
            return None
        self._missing.pop(key, None)
        manifest = Manifest.from_bytes(text, key)
        self._remember(key, manifest, begin)
        return manifest

    def _check(self, key: str, *, fresh: bool = False) -> tuple[Manifest | None, list[str]]:
        """Read and check a stage: its manifest, and what is wrong."""
        check_key(key)
        with store_errors(f"read stage {key}", self.place):
            try:
                manifest = self._read(key)
            except DamagedStageError as error:
                return None, [str(error)]
            if manifest is None:
                return None, []
            problems = self._backend.fetch(key, manifest, fresh=fresh)
            if problems and self._is_gone(key):  # removed while we looked
                return None, []
            return manifest, problems

    def _is_gone(self, key: str) -> bool:
        try:
            return self._backend.read_manifest(key) is None
        except DamagedStageError:
            return False

    def _find_locked(self, key: str) -> Manifest | None:
        """Find a stage whose lock is held; set it aside if it is damaged."""
        manifest, problems = self._check(key)
        if not problems:
            return manifest
        with store_errors(f"set aside the damaged stage {key}", self.place):
            moved_to = self._backend.set_aside(key)
        self._forget(key)
        if moved_to is not None:
            _LOGGER.warning(
                "stage %s in %s is damaged (%s): set aside as %s; it will be made again",
                key,
                self.place,
                "; ".join(problems),
                moved_to,
            )
            if self.on_damage is not None:
                self.on_damage(Damage(key, tuple(problems), moved_to))
        return None


def _is_about(error: OSError, work: Path) -> bool:
    """Whether an error in a claim's body comes from where the work folder lies."""
    if isinstance(error, StoreError) or error.errno not in UNWRITABLE:
        return False
    name = error.filename
    return not isinstance(name, str | os.PathLike) or Path(name).is_relative_to(work)


def _backend(url: str | Path, copies: str | Path | None, lease_seconds: float) -> Backend:
    text = str(url)
    for prefix in ("file://", "local://"):
        if text.startswith(prefix):
            text = text.removeprefix(prefix)
            break
    else:
        if "://" in text:
            from ratchet.store.remote import RemoteFolder

            folder = Path(copies) if copies is not None else _default_copies(text)
            copies_folder = LocalFolder(folder.expanduser().absolute())
            return RemoteFolder(text, copies_folder, lease_seconds=lease_seconds)
    if not text:
        raise StoreError("the store's place is empty, expected a folder or an fsspec URL.")
    return LocalFolder(Path(text).expanduser().absolute())


def _default_copies(url: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    return Path(cache, "ratchet", "store", name)
