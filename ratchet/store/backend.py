"""What a place for stages must be able to do; two kinds: local folders and fsspec URLs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ratchet.store.leased_lock import LeasedLock
    from ratchet.store.local import LocalFolder
    from ratchet.store.locks import FileLock
    from ratchet.store.manifest import Manifest


class FolderFacts(NamedTuple):
    """What is known of a folder: name, bytes, and when it was last used or written."""

    name: str
    size: int
    last_used: float


class Backend(ABC):
    """A place where finished stages lie, each whole or not at all."""

    @property
    @abstractmethod
    def folder(self) -> LocalFolder:
        """The local folder with locks and work folders (and copies, if the place is remote)."""

    @property
    @abstractmethod
    def place(self) -> str:
        """The path or URL, for messages."""

    @abstractmethod
    def lock(self, key: str) -> FileLock | LeasedLock:
        """Return the lock of a key (not yet taken), as far-reaching as the place allows."""

    @abstractmethod
    def read_manifest(self, key: str) -> bytes | None:
        """Read the manifest's text; None if there is no such stage.

        Raises
        ------
        DamagedStageError
            If there is something under the key, but it has no manifest and should have one.
        """

    @abstractmethod
    def stamp(self, key: str) -> object:
        """Return a value that changes whenever the manifest's text does.

        None if there is no manifest, or a look costs as much as reading it.
        """

    def has_copy(self, key: str) -> bool:
        """Return whether the files can be used without another look at the place."""
        return False

    @abstractmethod
    def fetch(self, key: str, manifest: Manifest, *, fresh: bool = False) -> list[str]:
        """Bring the files to the local folder, if need be, and check sizes and SHA-256.

        Parameters
        ----------
        fresh
            Read all files again, even if they were checked before and look unchanged.

        Returns
        -------
        list of str
            What is wrong with them; empty if they are sound.
        """

    @abstractmethod
    def extra_files(self, key: str, manifest: Manifest) -> list[str]:
        """List files that lie in the stage's folder and not in its manifest."""

    @abstractmethod
    def publish(self, work: Path, key: str, manifest: Manifest) -> bool:
        """Put a work folder's files in place as a finished stage, all at once.

        False if somebody had put one there meanwhile; it is kept.
        """

    @abstractmethod
    def set_aside(self, key: str) -> str | None:
        """Move a stage among the damaged; say where to, or None if it is gone."""

    @abstractmethod
    def discard(self, key: str) -> bool:
        """Remove a stage; say whether it was there."""

    @abstractmethod
    def keys(self) -> Iterator[str]:
        """List the keys of all that lies here, in order."""

    @abstractmethod
    def note_use(self, key: str) -> None:
        """Remember that a stage was used now, where that costs next to nothing."""

    @abstractmethod
    def facts(self, key: str, manifest: Manifest | None) -> FolderFacts:
        """Return size and last use of what lies under a key; ``manifest`` is None if not whole.

        Whose age cannot be known counts as used now.
        """

    @abstractmethod
    def discard_unless(self, key: str, wanted: Callable[[float], bool]) -> bool:
        """Remove a stage whose lock is held, unless ``wanted`` says otherwise; say whether it did.

        ``wanted`` is given the time of the last use, and asked when nobody can find the stage
        any more, where the place can do that. Cut off anywhere, the stage is whole or gone.
        """

    @abstractmethod
    def damaged(self) -> Iterator[FolderFacts]:
        """List the stages that were set aside."""

    @abstractmethod
    def remove_damaged(self, name: str) -> None:
        """Remove a stage that was set aside."""

    @abstractmethod
    def note_names(self) -> list[str]:
        """List the small files beside the stages that say who uses the store."""

    @abstractmethod
    def read_note(self, name: str) -> bytes | None:
        """Read such a file; None if there is none."""

    @abstractmethod
    def write_note(self, name: str, text: bytes | None) -> None:
        """Write such a file, whole or not at all; None removes it."""
