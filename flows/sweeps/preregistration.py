"""Preregistration of a sweep: checked when it is resolved, recorded before a member starts."""

from __future__ import annotations

import logging
from collections.abc import Set
from pathlib import Path

from ratchet.errors import ParameterError
from ratchet.reports.labels import ranges
from ratchet.tracking.preregistration import SECTION, Preregistration, PreregistrationRecord
from ratchet.tracking.sweep_folder import SweepRecord, read_own_sweep

logger = logging.getLogger(__name__)


def applicable_preregistration(
    content: Preregistration | None, seeds: Set[int]
) -> Preregistration | None:
    """Return a file's preregistration; None if the members' seeds are all others."""
    if content is None or not seeds & {*content.seeds}:
        return None
    if seeds != {*content.seeds}:
        raise ParameterError(
            f"{SECTION}.seeds: the sweep has the seeds {ranges(sorted(seeds))}, expected"
            f" {ranges(content.seeds)}: all preregistered seeds and no others, or none of them,"
            " e.g. for a search."
        )
    return content


def preregister(
    record: SweepRecord, content: Preregistration | None, runs: Path | str
) -> SweepRecord:
    """Return a sweep's record with its preregistration, unless one is stored.

    Logs a warning if the stored one differs, or if a member has started without one.
    """
    if content is None:
        return record
    run_ids = [member.run_id for member in record.members]
    known = read_own_sweep(Path(runs) / record.sweep_id)
    stored = None if known is None else known.preregistered
    if stored is not None:
        if stored.digest != content.digest(run_ids):
            logger.warning(
                "sweep %s: its preregistration of %s is kept (digest %s), but the section"
                " `preregistered` or the members have changed since (digest %s). Use a new --name"
                " to preregister the changed study.",
                *(record.sweep_id, f"{stored.registered:%Y-%m-%d %H:%M} UTC"),
                *(stored.digest, content.digest(run_ids)),
            )
        return record
    started = [run_id for run_id in run_ids if (Path(runs) / run_id / "manifest.json").exists()]
    if started:
        logger.warning(
            "sweep %s: not recorded as preregistered, since %d of %d members have started (%s).",
            *(record.sweep_id, len(started), len(run_ids), started[0]),
        )
        return record
    return record.model_copy(
        update={"preregistered": PreregistrationRecord.create(content, run_ids)}
    )
