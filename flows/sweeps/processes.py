"""Run the members of a sweep side by side, each in a process: one that dies takes no other along.

Processes are kept for the next member, since importing what a run needs takes seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from flows.sweeps.members import SweepMember
from ratchet.tracking.run_folder import RunFolder

MAX_ANSWER_BYTES = 2**24

MemberDone = Callable[[SweepMember, dict[str, Any]], None]


async def play_side_by_side(
    members: Iterable[SweepMember],
    done: MemberDone,
    *,
    num_processes: int,
    log_folder: Path,
) -> None:
    """Run members, begun in their order, in a few processes until all have been run.

    ``done`` is called with each member and its answer, in the order in which they end; only then
    the next member is drawn, so that which it is may depend on those that have ended. Each
    process' output goes to ``worker-1.log`` and so on in ``log_folder``.
    """
    waiting = iter(members)

    async def work(number: int) -> None:
        worker = _Worker(log_folder / f"worker-{number}.log")
        try:
            for member in waiting:
                done(member, await worker.play(member))
        finally:
            await worker.stop()

    places: list[Awaitable[None]] = [work(number + 1) for number in range(num_processes)]
    await asyncio.gather(*places)


class _Worker:
    """One process at a time; a new one after it has died."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: Process | None = None

    async def play(self, member: SweepMember) -> dict[str, Any]:
        """Run a member and return the answer; an error if the process dies of it."""
        request = member.experiment.flow_parameters()
        process = self._process or await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
        except (BrokenPipeError, ConnectionResetError):
            line = b""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        return {"error": self._died(member, await process.wait())}

    async def stop(self) -> None:
        """End the process: it is idle, or the sweep is being given up."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()

    async def _start(self) -> Process:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "flows.sweeps.worker"),
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                env=_environment(),
                limit=MAX_ANSWER_BYTES,
            )
        return self._process

    def _died(self, member: SweepMember, code: int) -> str:
        """Return how the process ended; note it in the member's run folder too."""
        self._process = None
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        text = f"its process was ended {how}; what it printed: {self._log}."
        path = member.experiment.run_path
        if (path / "manifest.json").exists():
            folder = RunFolder(path)
            folder.set_status("failed", text)
            folder.log_event("failed", text)
        return text


def _environment() -> dict[str, str]:
    """Return the processes this one's Prefect server, whichever it is."""
    from prefect.settings import PREFECT_API_URL

    url = PREFECT_API_URL.value()
    return {**os.environ, **({"PREFECT_API_URL": str(url)} if url else {})}
