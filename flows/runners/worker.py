"""Worker process that executes requests one at a time: a sweep member or a stage of a run.

Requests and responses are plain data. Finished stages are in the store, so that a worker which
replaces a killed one finds them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trainers.subprocess_worker import Answer, serve


def run_member(request: Answer) -> Answer:
    """Run one member; ``parameters`` are the parameters of the ``experiment`` flow.

    Returns an :class:`flows.runs.result.ExperimentResult` as plain data.
    """
    from flows.runs.resolve import resolve_parameters
    from flows.runs.run import run_resolved

    with _interruptible():
        experiment = resolve_parameters(**request["parameters"])
        return run_resolved(experiment).to_dict()


def run_stage(request: Answer) -> Answer:
    """Compute one stage of an arm; see :mod:`flows.runners.stage_dispatch`."""
    from flows.runners.stage_dispatch import execute_stage

    return execute_stage(request)


WORK: Mapping[str, Callable[[Answer], Answer]] = {"member": run_member, "stage": run_stage}


def execute(request: Answer) -> Answer:
    """Execute a request of the kind ``request["work"]``."""
    return WORK[request["work"]](request)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C interrupt a member in the same way as a separate run."""
    before: Any = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    serve(execute)
