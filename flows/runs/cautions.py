"""Cautions: what keeps no experiment from running, but is seldom what was meant.

``ratchet plan`` and ``ratchet doctor FILE`` say them; a run notes them among its events and says
them in its log, once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainers.combinations import find_cautions

if TYPE_CHECKING:
    from flows.runs.resolving import ResolvedExperiment
    from ratchet.tracking.run_folder import RunFolder

logger = logging.getLogger(__name__)

CAUTION = "caution"
"""The kind of event."""


def cautions(experiment: ResolvedExperiment) -> Iterator[str]:
    """Go through an experiment's cautions; where several arms give the same, it is one."""
    arms: dict[str, list[str]] = {}
    for arm, hyper_params in experiment.arms.items():
        for text in find_cautions(hyper_params, experiment.settings.base_dir):
            arms.setdefault(text, []).append(arm)
    for text, which in arms.items():
        yield text if len(experiment.arms) == 1 else f"{text} (arm {', '.join(which)})"


def note_cautions(experiment: ResolvedExperiment, folder: RunFolder) -> None:
    """Note what the run has not been told yet among its events, and in the log."""
    told = {event["message"] for event in folder.read_events() if event["kind"] == CAUTION}
    for text in cautions(experiment):
        if text not in told:
            folder.log_event(CAUTION, text)
            logger.warning("run %s: %s", folder.run_id, text)
