"""Progress of a sweep's running members, which run in other processes or on other machines.

A member's run folder contains its progress if this machine has access to it. Otherwise, and for
members that no process runs, the state of their flow run on the Prefect server is shown.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator

from flows.process.flow_runs import states_by_name
from flows.process.progress import format_seconds
from flows.sweeps.members import SweepMember
from ratchet.errors import RatchetError
from ratchet.tracking.live_file import read_live
from ratchet.tracking.run_folder import RunFolder
from trainers.progress import IterationContext

logger = logging.getLogger(__name__)

_INTERVAL_SECONDS = 5.0
_SILENT_SECONDS = 60.0  # after which the time since the last progress is shown
_NUM_SHOWN = 3


class MemberProgress:
    """Describes the running members in the sweep's progress."""

    def __init__(self, states: Callable[[list[str]], dict[str, str]] = states_by_name) -> None:
        self._states = states
        self._running: dict[str, SweepMember] = {}

    def started(self, members: Iterable[SweepMember]) -> Iterator[SweepMember]:
        """Yield the members; each is running from then on."""
        for member in members:
            self._running[member.run_id] = member
            yield member

    def ended(self, member: SweepMember) -> None:
        """Remove a member that is no longer running."""
        del self._running[member.run_id]

    async def show(self, progress: IterationContext) -> None:
        """Update the description of the progress until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS)
            if self._running:
                try:
                    progress.set_description(await asyncio.to_thread(self.describe))
                except (OSError, RatchetError) as error:  # e.g. a shared folder that is away
                    logger.warning("could not read the progress of members: %s", error)

    def describe(self) -> str:
        """Return one line about the running members."""
        members = list(self._running.values())
        states = self._states([member.run_id for member in members])
        lines = [
            f"{member.label}: {_status(member, states.get(member.run_id))}"
            for member in members[:_NUM_SHOWN]
        ]
        more = len(members) - len(lines)
        return "Sweep · " + "; ".join([*lines, *([f"{more} more"] if more else [])])


def _status(member: SweepMember, state: str | None) -> str:
    """Return the progress in a member's run folder, or the state of its flow run."""
    path = member.experiment.run_path
    folder = RunFolder(path) if (path / "manifest.json").exists() else None
    status = folder.status if folder is not None else None
    live = read_live(path) if status == "running" else None
    if folder is None or live is None:
        parts = [status, f"{state.lower()} in Prefect" if state else None]
        return ", ".join(filter(None, parts)) or "waiting"
    count = f" {live['done']}/{live['expected']}" if live["expected"] else ""
    silent = time.time() - live["time"]
    since = f", no progress for {format_seconds(silent)}" if silent > _SILENT_SECONDS else ""
    return f"{live['doing'] or 'running'}{count}, {len(folder.manifest.stages)} stages done{since}"
