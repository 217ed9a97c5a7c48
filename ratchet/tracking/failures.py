"""What mirrors say when they fail."""

from __future__ import annotations

from ratchet.errors import TrackingError
from ratchet.tracking.urls import without_logins


def tracking_error(what: str, error: Exception) -> TrackingError:
    """Describe what a mirror's library has raised, and what to do."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return TrackingError(
        without_logins(
            f"{what} failed: {reason[:300]}. The run folder has everything; `ratchet sync RUN`"
            " brings it up to that."
        )
    )
