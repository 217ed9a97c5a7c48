"""A process that works requests, one at a time: a whole member of a sweep, or a stage of a run.

It builds all that it needs from plain data, and answers with plain data. Finished stages are in the
store: what a worker had finished that was killed, the next one finds.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trainers.companion import Answer, serve


def play_member(request: Answer) -> Answer:
    """Run one member; ``parameters`` are those of the ``experiment`` flow.

    Returns an :class:`flows.runs.result.ExperimentResult` as plain data.
    """
    from flows.runs.resolving import resolve_parameters
    from flows.runs.running import run_resolved

    with _interruptible():
        experiment = resolve_parameters(**request["parameters"])
        return run_resolved(experiment).to_dict()


def play_stage(request: Answer) -> Answer:
    """Make one stage of an arm; see :mod:`flows.runners.stages`."""
    from flows.runners.stages import work_stage

    return work_stage(request)


WORK: Mapping[str, Callable[[Answer], Answer]] = {"member": play_member, "stage": play_stage}


def work(request: Answer) -> Answer:
    """Work a request; its ``work`` says which."""
    return WORK[request["work"]](request)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end a run in its own way, as it does where it is nobody's member."""
    before: Any = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    serve(work)
