"""What run folders can be mirrored to: ``Mirror``, and the three kinds there are."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from ratchet.lazy import require_packages

if TYPE_CHECKING:
    from ratchet.tracking.run_folder import RunFolder

NAMES = {"mlflow": "MLflow", "tensorboard": "TensorBoard", "wandb": "W&B"}
"""What each kind is called in messages."""


class Mirror(Protocol):
    """Something outside that is brought up to run folders, however often it is asked and killed."""

    live: bool
    """Whether somebody may look at it while the run goes on."""

    def sync(self, folder: RunFolder) -> str:
        """Bring it up to a run folder, each point once; return what the run is called there.

        Raises
        ------
        TrackingError
            If it can't be reached or refuses; the run can go on, and the next call catches up.
        """


def choose_place(kind: str, tracking_uri: str) -> str:
    """Return where a kind of mirror keeps a run: an address, a folder, or whether it may send.

    W&B sends nothing unless ``WANDB_MODE`` is ``online``.

    Raises
    ------
    MissingPackageError
        If the kind's package is not installed.
    """
    if kind == "mlflow":
        return tracking_uri
    require_packages([kind], by=f"settings.mirrors: {kind}")
    if kind == "tensorboard":
        return "tensorboard/"
    return os.environ.get("WANDB_MODE", "offline")


def open_mirror(kind: str, place: str) -> Mirror:
    """Return the mirror of a kind at a place that :func:`choose_place` gave."""
    if kind == "mlflow":
        from ratchet.tracking.mlflow.mirror import MlflowMirror

        return MlflowMirror(place)
    if kind == "tensorboard":
        from ratchet.tracking.tensorboard import TensorboardMirror

        return TensorboardMirror(place)
    from ratchet.tracking.wandb import WandbMirror

    return WandbMirror(place)
