"""What a place for stages must be able to do; two kinds: local folders and fsspec URLs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.store.local import LocalFolder
    from ratchet.store.manifest import Manifest


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
    def read_manifest(self, key: str) -> bytes | None:
        """Read the manifest's text; None if there is no such stage.

        Raises
        ------
        DamagedStageError
            If there is something under the key, but it has no manifest and should have one.
        """

    @abstractmethod
    def stamp(self, key: str) -> object:
        """Return a value that changes whenever the manifest's text does; None if there is none."""

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
