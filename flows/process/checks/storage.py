"""Folders and the store: written, locked, with room, and on a clock that agrees with ours."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from flows.process.checks.base import Check, Places, bad, good, warning
from ratchet.errors import RatchetError

_LITTLE_SPACE = 2 * 2**30
_TOO_LITTLE_SPACE = 32 * 2**20
"""With less than this free the store starts no stage."""
SKEW_SECONDS = 30.0


def folders(places: Places) -> Iterator[Check]:
    """Check home, runs folder and store."""
    yield storage("home", places.home)
    yield storage("runs", places.runs)
    if "://" in places.store_place:
        yield _remote_store(places.store_place)
    elif places.store is not None:
        yield storage("store", Path(places.store))


def storage(name: str, folder: Path) -> Check:
    """Check that a folder (or where it would be made) can be written and locked, and has room."""
    place = folder.resolve()
    while not place.exists():
        place = place.parent
    elsewhere = f"`ratchet run … settings.{name}=FOLDER`"
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".ratchet-doctor-") as probe:
            skew = os.fstat(probe.fileno()).st_mtime - time.time()
            try:
                _lock(probe.fileno())
            except OSError as error:
                details = f"{place} cannot be locked ({error}), as network folders without flock"
                return bad(name, f"{details}. Choose a place that can: {elsewhere}")
    except OSError as error:
        details = f"{place} cannot be written: {error}. Make it yours with `chmod u+rwx {place}`"
        return bad(name, f"{details}, or choose another place: {elsewhere}")
    free = shutil.disk_usage(place).free
    if free < _TOO_LITTLE_SPACE:
        return bad(name, f"{place} is full: {free:,} bytes free. See what can go: `ratchet gc`")
    if abs(skew) > SKEW_SECONDS:
        details = f"{place}: its file server's clock is {skew:+.0f} s off this machine's"
        return warning(name, f"{details}. Set both: `sudo timedatectl set-ntp true`")
    space = f"{place}: writable, locks work, {free / 2**30:.0f} GiB free"
    if free < _LITTLE_SPACE:
        return warning(name, f"{space}. See what can go: `ratchet gc`")
    return good(name, space)


def _lock(descriptor: int) -> None:
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def _remote_store(url: str) -> Check:
    """Check that a store at a URL can be read and written, and whether claims hold there."""
    from ratchet.store.remote import RemoteFolder
    from ratchet.store.store import StageStore

    try:
        backend = StageStore(url).backend
        number = len(list(backend.keys()))
        holds = isinstance(backend, RemoteFolder) and backend.keeps_conditions()
    except (RatchetError, OSError) as error:
        return bad("store", f"{url}: {error}. Name another: `ratchet run … settings.store=URL`")
    except Exception as error:  # noqa: BLE001 -- each service's client has errors of its own
        reason = f"{type(error).__name__}: {error}"
        return bad("store", f"{url}: {reason}. Name another: `ratchet run … settings.store=URL`")
    if not holds:
        details = f"{url}: {number} stages, written without conditions: two machines that need the"
        return warning(
            "store", f"{details} same stage at once both make it. Use S3, or one machine"
        )
    return good("store", f"{url}: {number} stages, writable, claims hold across machines")
