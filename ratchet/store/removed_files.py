"""Removal and restoration of large files of finished stages, which stay finished.

A file is marked in its stage's manifest before it is deleted, and unmarked after it was restored.
So an interruption leaves at most a marked file that still exists, which no process reads.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import StoreError
from ratchet.store.backend import store_errors
from ratchet.store.local import seal_files

if TYPE_CHECKING:
    from ratchet.store.manifest import Manifest
    from ratchet.store.store import StageStore


def remove_files(store: StageStore, key: str, names: Iterable[str]) -> bool:
    """Delete files of a finished stage; return whether it was possible.

    Not if another process holds the stage's lock, or the stage has gone. May be repeated.
    """
    backend = store.backend
    with store_errors(f"remove files of stage {key}", store.location):
        backend.folder.prepare()
        lock = backend.lock(key)
        if not lock.try_acquire():
            return False
        try:
            manifest = store.peek(key)
            if manifest is None:
                return False
            marked = manifest.model_copy(update={"removed": tuple(sorted(names))})
            if marked != manifest and not backend.replace_manifest(marked):
                return False
            backend.delete_removed(marked)
            return True
        finally:
            lock.release()


@contextmanager
def files_put_back(store: StageStore, manifest: Manifest) -> Iterator[Path]:
    """Yield an empty folder, whose files become the removed files of a stage at the end.

    Raises StoreError, without a change, if their bytes differ from those of the removed files.
    """
    backend, key = store.backend, manifest.key
    with store_errors(f"restore files of stage {key}", store.location):
        backend.folder.prepare()
        lock = backend.lock(key)
        lock.acquire()
        work = backend.folder.make_work(key)
        try:
            yield work
            entries = seal_files(work)
            different = [n for n in manifest.removed if entries.get(n) != manifest.files[n]]
            if different:
                raise StoreError(
                    f"{manifest.stage} {manifest.iteration}: {', '.join(different)} of stage {key}"
                    " was computed again with other bytes than those removed, so it stays removed."
                )
            backend.put_back(work, manifest)
            backend.replace_manifest(manifest.model_copy(update={"removed": ()}))
        finally:
            shutil.rmtree(work, ignore_errors=True)
            lock.release()
