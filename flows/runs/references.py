"""Which stages runs need: those that they have recorded, what forks share, and what these stand on.

Asked by whoever removes stages and by whoever packs a run.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from flows.runs.forks import FORK_FILE, Fork
from ratchet.errors import DataError
from ratchet.store.keys import is_key
from ratchet.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from ratchet.store.store import StageStore

_MANIFEST = "manifest.json"


def run_keys(folder: Path) -> set[str]:
    """Return the keys that a run's folder names.

    Raises DataError if its manifest or ``fork.json`` is damaged: what it needs is not known then.
    """
    keys = {record.key for record in RunFolder(folder).manifest.stages}
    fork = Fork.read(folder)
    return keys if fork is None else keys | {record.key for record in fork.stages}


def with_inputs(store: StageStore, keys: Iterable[str]) -> set[str]:
    """Add the stages that stages were made of, and those that these were made of."""
    found: set[str] = set()
    pending = list(keys)
    while pending:
        key = pending.pop()
        if key in found:
            continue
        found.add(key)
        manifest = store.peek(key)
        if manifest is not None:
            inputs = manifest.inputs.values()
            pending += [value for value in inputs if isinstance(value, str) and is_key(value)]
    return found


class References:
    """The stages that the runs of some folders need, as they stand when one asks."""

    def __init__(self, store: StageStore, folders: Iterable[Path]) -> None:
        self._store = store
        self._folders = sorted({folder.resolve() for folder in folders})
        self._read: dict[Path, tuple[object, set[str]]] = {}
        self._known: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())

    @property
    def num_runs(self) -> int:
        """How many runs there were when it was last asked for what they need."""
        return len(self._read)

    def needed(self) -> frozenset[str]:
        """Return the keys of all stages that are needed; reads only runs that have changed.

        Raises DataError if a run, or a runs folder, cannot be read.
        """
        runs = {run for folder in self._folders for run in _runs_in(folder)}
        self._read = {run: known for run, known in self._read.items() if run in runs}
        for run in sorted(runs):
            stamp = _stamp(run / _MANIFEST), _stamp(run / FORK_FILE)
            known = self._read.get(run)
            if known is None or known[0] != stamp:
                self._read[run] = stamp, run_keys(run)
        named = frozenset().union(*(keys for _, keys in self._read.values()))
        if named != self._known[0]:
            self._known = named, frozenset(with_inputs(self._store, named))
        return self._known[1]


def _runs_in(folder: Path) -> list[Path]:
    """List the runs of a folder; DataError if one may be there that cannot be seen."""
    path = folder
    try:
        runs = []
        for path in folder.iterdir():
            if path.name.startswith("."):
                continue
            if _stamp(path / _MANIFEST) is not None:
                runs.append(path)
            elif path.is_symlink():
                path.stat()  # it may lead to a run that is not there now
    except OSError as error:
        raise DataError(
            f"{path}: cannot be looked into ({error.strerror}), so that nobody knows what runs are"
            " there. Have it readable from here, or remove it if nothing is needed of it."
        ) from error
    return runs


def _stamp(file: Path) -> object:
    try:
        status = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
