"""Wait for the fine-tune jobs of all shared model groups at once, and switch to what they made."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ratchet.errors import FineTuneError

if TYPE_CHECKING:
    from ratchet.language_models.usage import UsageMeter
    from ratchet.scenarios.pure_text.agents.shared_model_group import PureTextSharedModelGroup
    from trainers.text.state import State

_LOGGER = logging.getLogger(__name__)
_NO_JOB = ("frozen", "insufficient_data")


async def await_jobs(groups: Mapping[str, PureTextSharedModelGroup], usage: UsageMeter) -> None:
    """Wait until no job runs any more, then switch models; nothing is switched if one failed.

    ``usage`` counts what the jobs used. Raises FineTuneError if a job failed or was cancelled: with
    the group, and the service's reason.
    """
    await asyncio.gather(*(group.await_job() for group in groups.values()))
    statuses = {name: group.get_fine_tune_job_status() for name, group in groups.items()}
    failed = {name: status for name, status in statuses.items() if _has_failed(status)}
    if failed:
        reasons = "; ".join(
            f"group {name!r}: {status}: {groups[name].get_fine_tune_job_error_repr()}"
            for name, status in failed.items()
        )
        raise FineTuneError(f"fine-tune jobs failed: {reasons}. Run the same again to retry.")
    for name, group in groups.items():
        if statuses[name] in _NO_JOB:
            _LOGGER.info("group %s keeps its model: %s", name, statuses[name])
        group.record_usage(usage)
        group.switch_to_next_model()


def no_job_stats(groups: Mapping[str, PureTextSharedModelGroup]) -> dict[str, float]:
    """Return 0 or 1 for each group and reason to have no job."""
    stats: dict[str, float] = {}
    for name, group in groups.items():
        state = group.state
        found = state.no_job_reason or ("frozen" if state.fine_tune_job_id is None else None)
        stats |= {f"{name}.{reason}": float(found == reason) for reason in _NO_JOB}
    return stats


def without_jobs(state: State) -> State:
    """Return the state before its jobs were made.

    Making them again finds those that succeeded, and begins those anew that failed.
    """
    groups = {
        name: replace(group, fine_tune_job_id=None, fine_tune_intent=None, no_job_reason=None)
        for name, group in state.shared_model_groups.items()
    }
    return replace(state, train_loop_stage="create_fine_tune_jobs", shared_model_groups=groups)


def _has_failed(status: str) -> bool:
    return status != "succeeded" and status not in _NO_JOB
