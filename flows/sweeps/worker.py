"""A process that runs members of a sweep, one at a time, as its parent asks for them.

A request is a line of JSON on standard input and its answer a line on standard output; what
libraries print goes to standard error. It ends with its parent, even when that is killed.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import IO, Any

from ratchet.errors import RatchetError

_KILLED = 3


def play_member(request: dict[str, Any]) -> dict[str, Any]:
    """Run one member, with the parameters of the ``experiment`` flow as plain data.

    Returns ``result``, an :class:`flows.runs.result.ExperimentResult` as plain data, or ``error``.
    """
    from flows.runs.resolving import resolve_parameters
    from flows.runs.running import run_resolved

    try:
        return {"result": run_resolved(resolve_parameters(**request)).to_dict()}
    except RatchetError as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    requests: queue.Queue[str | None] = queue.Queue()
    idle = threading.Event()
    idle.set()
    threading.Thread(target=_listen, args=(sys.stdin, requests, idle), daemon=True).start()
    while (line := requests.get()) is not None:
        answer = play_member(json.loads(line))
        idle.set()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _listen(source: IO[str], requests: queue.Queue[str | None], idle: threading.Event) -> None:
    """Pass requests on; when the parent is gone, end, in the middle of work if need be."""
    for line in source:
        idle.clear()
        requests.put(line)
    if not idle.is_set():
        os._exit(_KILLED)
    requests.put(None)


if __name__ == "__main__":
    main()
