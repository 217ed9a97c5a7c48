"""``Mirror``, a copy of run folders in another system, and the registry of mirrors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ratchet.errors import TrackingError
from ratchet.lazy import require_packages
from ratchet.plugins import file_at, is_class_spec
from ratchet.registry import Registry
from ratchet.tracking.urls import without_logins

if TYPE_CHECKING:
    from ratchet.tracking.run_folder import RunFolder


class Mirror(ABC):
    """Copies run folders to another system; idempotent, also after a kill.

    Parameters
    ----------
    place
        The address, folder or mode that :meth:`choose_place` returned.
    """

    title: ClassVar[str] = "mirror"
    """Name in messages."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages that must be installed."""
    files: ClassVar[tuple[str, ...]] = ()
    """Files and folders that it writes into a run's folder; exports leave them out."""
    live: bool = False
    """Whether to sync during the run, not only at its end."""

    def __init__(self, place: str) -> None:
        self.place = place

    @classmethod
    def choose_place(cls, tracking_uri: str) -> str:
        """Return the address, folder or mode to use; ``tracking_uri`` is MLflow's."""
        return ""

    @abstractmethod
    def sync(self, folder: RunFolder) -> str:
        """Send everything that the mirror lacks, each point once; return the run's name there.

        Raises
        ------
        TrackingError
            If it can't be reached or refuses. The run continues, and the next call catches up.
        """


MIRRORS: Registry[Mirror] = Registry(
    "mirror",
    "ratchet.tracking.mirrors.base:Mirror",
    "ratchet.tracking.mirrors",
    parameter="settings.mirrors",
)


def absolute_kind(kind: str, base_dir: str | Path | None) -> str:
    """Return a mirror's kind with the absolute path of its file, if it is a file."""
    path, _, name = kind.rpartition(":")
    return f"{file_at(path, base_dir)}:{name}" if is_class_spec(kind) else kind


def mirror_files(kinds: Iterable[str], base_dir: str | Path | None = None) -> set[str]:
    """Return the names that registered mirrors and further kinds write into a run's folder."""
    mirrors = [MIRRORS.find(kind, base_dir) for kind in {*MIRRORS.names(), *kinds}]
    return {name for mirror in mirrors for name in mirror.files}


def choose_place(kind: str, tracking_uri: str) -> str:
    """Return the address, folder or mode of a kind of mirror."""
    mirror_class = MIRRORS.find(kind)
    require_packages(mirror_class.packages, by=f"settings.mirrors: {kind}")
    return mirror_class.choose_place(tracking_uri)


def open_mirror(kind: str, location: str) -> Mirror:
    """Return the mirror of a kind at a place that :func:`choose_place` returned."""
    return MIRRORS.find(kind)(location)


def tracking_error(what: str, error: Exception) -> TrackingError:
    """Return an error for an exception of a mirror's library, with the next command."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return TrackingError(
        without_logins(
            f"{what} failed: {reason[:300]}. The run folder is complete; `ratchet sync RUN`"
            " sends the rest."
        )
    )
