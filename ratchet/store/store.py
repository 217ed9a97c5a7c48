"""The stage store: find finished stages, claim missing ones, commit their results.

A stage is complete or absent, and is checked when it is used. If several processes
claim the same stage, one computes it, and the others wait and reuse the result.
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
from typing import TYPE_CHECKING, TypeAlias

from ratchet.errors import DamagedStageError, StoreError
from ratchet.store.backend import DEVICE_ERRORS, store_error, store_errors
from ratchet.store.claim import Claim
from ratchet.store.keys import check_key
from ratchet.store.local import LocalFolder
from ratchet.store.locks import user_cache
from ratchet.store.manifest import Manifest, read_identity

if TYPE_CHECKING:
    from ratchet.store.remote import RemoteFolder

    AnyBackend: TypeAlias = LocalFolder | RemoteFolder

_LOGGER = logging.getLogger(__name__)
_DEFAULT_RESERVE = 32 * 2**20
_STALE_SECONDS = 600.0
LEASE_SECONDS = 60.0
"""Time after which a claim expires without a renewal; it is renewed every quarter of that."""


@dataclass(frozen=True)
class Damage:
    """A stage that did not match its manifest, the problems, and its new location."""

    key: str
    problems: tuple[str, ...]
    moved_to: str


class StageStore:
    """Finished stages by key, in a local folder or at any fsspec URL.

    Parameters
    ----------
    url
        A folder's path, ``file://…``, or an fsspec URL such as ``s3://bucket/prefix``. The first
        claim creates it.
    copies
        For a URL: the local folder for copies, locks and unfinished work; by default
        ``$XDG_CACHE_HOME/ratchet/store/…`` (``~/.cache``). Processes of one machine that share
        a URL should share it: claims of a dead process are then free immediately.
    on_damage
        Called for every quarantined stage, after the warning is logged.
    reserve_bytes
        A claim that would start work is refused if less than this is free on the local disk.
    lease_seconds
        For a URL: the time after which a claim of another machine expires without a renewal.
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
        self._recent: dict[str, tuple[float, Manifest]] = {}
        self._claimed: set[str] = set()
        self._cleaned = False

    @property
    def location(self) -> str:
        """The folder's path or the URL."""
        return self._backend.location

    @property
    def backend(self) -> AnyBackend:
        """The storage of the stages, for maintenance."""
        return self._backend

    @property
    def size(self) -> int:
        """Total bytes of all finished stages' files."""
        return sum(manifest.size for manifest in self.iterate())

    def peek(self, key: str, *, allow_stale: bool = False) -> Manifest | None:
        """Read a stage's manifest without checking its files; None if it is missing or damaged.

        For plans and listings: fast and read-only. ``allow_stale``: at a URL, the result may be
        some minutes old.
        """
        check_key(key)
        if allow_stale:
            since, recent = self._recent.get(key, (-math.inf, None))
            if time.monotonic() - since >= _STALE_SECONDS:
                recent = None
            if recent is not None or self._was_missing(key):
                return recent
        with store_errors(f"read stage {key}", self.location):
            stamp = self._backend.stamp(key)
            cached = self._index.get(key)
            if stamp is not None and cached is not None and cached[0] == stamp:
                return cached[1]
            try:
                manifest = self._read(key)
            except DamagedStageError as error:
                _LOGGER.warning("stage %s in %s is damaged: %s", key, self.location, error)
                return None
        if manifest is not None and stamp is not None:
            self._index[key] = (stamp, manifest)
        return manifest

    def read_file(self, manifest: Manifest, name: str) -> bytes | None:
        """Read one file of a stage, unchecked; None if the stage has none, or it is damaged."""
        if name not in manifest.files:
            return None
        with store_errors(f"read {name} of stage {manifest.key}", self.location):
            return self._backend.read_file(manifest, name)

    def find(self, key: str, *, refresh: bool = False) -> Manifest | None:
        """Find a finished stage and check it.

        Sizes and SHA-256 are checked when a process uses a stage for the first time, and again
        when its files' times or sizes have changed. A damaged stage is quarantined, logged, and
        counts as missing. Stages at a URL are downloaded for the check; one that was missing
        counts as missing for some minutes, except for claims.

        Parameters
        ----------
        refresh
            Check again even if it was missing recently.

        Raises
        ------
        StoreError
            If the store can't be read.
        """
        check_key(key)
        return None if not refresh and self._was_missing(key) else self._find(key)

    def _was_missing(self, key: str) -> bool:
        """Return whether a stage was missing at a URL recently: checking costs a request."""
        return (
            key not in self._claimed
            and self._backend.folder is not self._backend
            and time.monotonic() - self._missing.get(key, -math.inf) < _STALE_SECONDS
        )

    def _remember(self, key: str, manifest: Manifest, since: float) -> None:
        if self._backend.folder is not self._backend:
            self._recent[key] = (since, manifest)

    def _forget(self, key: str) -> None:
        self._index.pop(key, None)
        self._recent.pop(key, None)

    def _find(self, key: str) -> Manifest | None:
        manifest, problems = self._check(key)
        if not problems:
            if manifest is not None:
                self._backend.note_use(key)
            return manifest
        folder = self._backend.folder
        with store_errors(f"quarantine the damaged stage {key}", self.location):
            folder.prepare()
            lock = self._backend.lock(key)
            if not lock.try_acquire():  # its holder checks the stage too
                _LOGGER.warning("stage %s in %s is damaged: %s", key, self.location, problems)
                return None
            try:
                return self._find_locked(key)
            finally:
                lock.release()

    def open(self, key: str, *, partial: bool = False) -> Path:
        """Return the local folder with a finished stage's files, checked, for reading only.

        Raises
        ------
        StoreError
            If the stage is missing or damaged; unless ``partial``, also if files were removed.
        """
        check_key(key)
        with store_errors(f"read stage {key}", self.location):
            manifest = self._backend.copied_manifest(key)
        manifest = manifest or self._find(key)
        if manifest is None:
            raise StoreError(
                f"stage {key} is not in {self.location} (or was damaged and is quarantined)."
                " Run the same command again to recompute it."
            )
        if manifest.removed and not partial:
            raise StoreError(
                f"{manifest.stage} {manifest.iteration}: {', '.join(manifest.removed)} of stage"
                f" {key} was removed to free space. Compute it again with"
                f" `ratchet restore {manifest.run_id or 'RUN'} {manifest.iteration}`."
            )
        return self._backend.folder.stage_path(key)

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
        """Get a stage's result, or the exclusive right to compute it.

        Blocks while another thread, process or run holds the claim: call it in a thread from
        asynchronous code. The claim of a killed process is free immediately, on another machine
        after ``lease_seconds``. Claims are not re-entrant.

        Parameters
        ----------
        missed
            Whether :meth:`find` has just returned None, so that it need not be called again.
        wait_seconds
            The longest wait for another holder; unlimited when None.
        cancelled
            Ends the wait when set.
        on_wait
            Called once with a description of the holder, if another process holds the claim.

        Yields
        ------
        Claim
            With ``existing`` set if the stage is finished; otherwise with a ``workdir`` to write
            files into and ``commit`` to call. Without a commit, no files are stored.

        Raises
        ------
        StoreError
            If the store can't be written or read, has too little space, or the wait ended.
        """
        check_key(key)
        existing = None if missed else self.find(key)
        if existing is not None:
            yield Claim(self._backend, key, existing, None)
            return
        with store_errors(f"claim stage {key}", self.location):
            self._prepare()
            lock = self._backend.lock(key)
            held = lock.acquire(wait_seconds=wait_seconds, cancelled=cancelled, on_wait=on_wait)
        if not held:
            raise StoreError(
                f"stage {key} in {self.location} is being computed by {lock.holder()};"
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
                    self._claimed.add(key)
                    self._remember(key, claim.existing, time.monotonic())
                if work is not None and lock.held:  # not in a forked child
                    shutil.rmtree(work, ignore_errors=True)
        finally:
            lock.release()

    def iterate(self) -> Iterator[Manifest]:
        """Yield the manifests of all finished stages, by key; files are not checked."""
        with store_errors("list the stages", self.location):
            keys = list(self._backend.keys())
        for key in keys:
            manifest = self.peek(key)
            if manifest is not None:
                yield manifest

    def identities(self) -> Iterator[tuple[str, str, int]]:
        """Yield the key, name and iteration of all stages, by key; damaged ones are left out.

        Faster than :meth:`iterate`, which reads complete manifests.
        """
        with store_errors("list the stages", self.location):
            for key in list(self._backend.keys()):
                with contextlib.suppress(DamagedStageError):  # reported when the stage is used
                    text = self._backend.read_manifest(key)
                    identity = None if text is None else read_identity(text)
                    if identity is not None:
                        yield key, *identity

    def verify(self, key: str) -> list[str]:
        """Read all of a stage's files again and return the problems; empty if it is intact.

        Read-only. Reports files that are not in the manifest, too.

        Raises
        ------
        StoreError
            If the stage is missing.
        """
        manifest, problems = self._check(key, fresh=True)
        if problems:
            return problems
        if manifest is None:
            raise StoreError(f"stage {key} is not in {self.location}: cannot verify it.")
        with store_errors(f"verify stage {key}", self.location):
            extra = self._backend.extra_files(key, manifest)
        return [f"{name} is not in the manifest" for name in extra]

    def remove(self, key: str) -> bool:
        """Remove a finished stage, waiting for a holder of its claim; return whether it existed."""
        check_key(key)
        with store_errors(f"remove stage {key}", self.location):
            self._prepare()
            lock = self._backend.lock(key)
            lock.acquire()
            try:
                self._forget(key)
                self._claimed.discard(key)
                return self._backend.discard(key)
            finally:
                lock.release()

    def check_writable(self) -> None:
        """Write, flush and remove a small file.

        Raises
        ------
        StoreError
            If that fails, or less than ``reserve_bytes`` is free.
        """
        folder = self._backend.folder
        with store_errors("write", folder.location):
            self._prepare()
            self._check_space()
            name = f"probe-{secrets.token_hex(8)}"
            lock = folder.lock(name)
            lock.acquire()  # otherwise clean() takes it for that of a dead process
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
        with store_errors(f"start stage {key}", folder.location):
            self._check_space()
            return folder.make_work(key)

    def _check_space(self) -> None:
        folder = self._backend.folder
        free = shutil.disk_usage(folder.root).free
        if free < self.reserve_bytes:
            raise StoreError(
                f"{folder.location} has {free:,} bytes free, expected at least"
                f" {self.reserve_bytes:,} before a stage starts. Free space there, or choose"
                " another location with the setting `store`."
            )

    def _read(self, key: str) -> Manifest | None:
        start = time.monotonic()
        text = self._backend.read_manifest(key)
        if text is None:
            self._missing[key] = start
            return None
        self._missing.pop(key, None)
        manifest = Manifest.from_bytes(text, key)
        self._remember(key, manifest, start)
        return manifest

    def _check(self, key: str, *, fresh: bool = False) -> tuple[Manifest | None, list[str]]:
        """Read and check a stage; return its manifest and the problems."""
        check_key(key)
        with store_errors(f"read stage {key}", self.location):
            try:
                manifest = self._read(key)
            except DamagedStageError as error:
                return None, [str(error)]
            if manifest is None:
                return None, []
            problems = self._backend.fetch(key, manifest, fresh=fresh)
            if problems and self._is_gone(key):  # removed during the check
                return None, []
            return manifest, problems

    def _is_gone(self, key: str) -> bool:
        try:
            return self._backend.read_manifest(key) is None
        except DamagedStageError:
            return False

    def _find_locked(self, key: str) -> Manifest | None:
        """Find a stage whose lock is held; quarantine it if it is damaged."""
        manifest, problems = self._check(key)
        if not problems:
            return manifest
        with store_errors(f"quarantine the damaged stage {key}", self.location):
            moved_to = self._backend.quarantine(key)
        self._forget(key)
        if moved_to is not None:
            _LOGGER.warning(
                "stage %s in %s is damaged (%s): quarantined as %s; it will be recomputed",
                key,
                self.location,
                "; ".join(problems),
                moved_to,
            )
            if self.on_damage is not None:
                self.on_damage(Damage(key, tuple(problems), moved_to))
        return None


def _is_about(error: OSError, work: Path) -> bool:
    """Return whether an error in a claim's body comes from the device of the work folder."""
    if isinstance(error, StoreError) or error.errno not in DEVICE_ERRORS:
        return False
    name = error.filename
    return not isinstance(name, str | os.PathLike) or Path(name).is_relative_to(work)


def _backend(url: str | Path, copies: str | Path | None, lease_seconds: float) -> AnyBackend:
    text = str(url)
    for prefix in ("file://", "local://"):
        if text.startswith(prefix):
            text = text.removeprefix(prefix)
            break
    else:
        if "://" in text:
            from ratchet.store.remote import RemoteFolder

            if copies is None:
                name = hashlib.sha256(text.encode()).hexdigest()[:16]
                copies = user_cache() / "store" / name
            folder = LocalFolder(Path(copies).expanduser().absolute())
            return RemoteFolder(text, folder, lease_seconds=lease_seconds)
    if not text:
        raise StoreError("the store's location is empty, expected a folder or an fsspec URL.")
    return LocalFolder(Path(text).expanduser().absolute())
