"""Fault injection for tests: a stage fails or is killed while it computes.

Used by ``tasks.stages.decorator``. Does nothing unless the environment variable
``RATCHET_FAULT`` is set, e.g. ``stage=train;iteration=10;kind=kill;after=0.2;once=/tmp/done``.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import ParameterError, nearest

VARIABLE = "RATCHET_FAULT"
_FIELDS = ("stage", "iteration", "detail", "kind", "after", "within", "seed", "once")


class InjectedFault(RuntimeError):  # noqa: N818 -- not an error of the project
    """A stage failed on request of ``RATCHET_FAULT``."""


@dataclass(frozen=True)
class Fault:
    """A fault and the stage it affects.

    Attributes
    ----------
    iteration
        Only in the stage that ends after this many iterations; None for any.
    detail
        Only for this agent or dataset; None for any.
    kind
        "raise" at the stage's start, or "kill": SIGKILL to this process.
    delay
        Seconds from the stage's start to the kill, at most until its end.
    once
        A file that is created when the fault strikes; while it exists, the fault does not strike.
    """

    stage: str
    kind: str
    iteration: int | None = None
    detail: str | None = None
    delay: float = 0.0
    once: Path | None = None

    def concerns(self, stage: str, iteration: int, detail: str) -> bool:
        """Return whether the fault strikes in this stage."""
        return (
            self.stage == stage
            and self.iteration in (None, iteration)
            and self.detail in (None, detail)
            and (self.once is None or not self.once.exists())
        )

    def strike(self) -> None:
        """Raise, or kill the process."""
        if self.once is not None:
            self.once.write_text(self.kind)
        if self.kind == "raise":
            raise InjectedFault(f"{VARIABLE} made stage {self.stage!r} fail")
        os.kill(os.getpid(), signal.SIGKILL)


def read_fault(text: str) -> Fault:
    """Read the value of ``RATCHET_FAULT``.

    Fields, divided by semicolons: ``stage``, ``kind`` (raise or kill), and optionally
    ``iteration``, ``detail``, ``once=FILE``, and the moment of a kill: ``after=SECONDS``, or
    ``within=SECONDS`` with ``seed=N`` for a random one. Raises ParameterError if a field is unknown
    or missing.
    """
    fields: dict[str, str] = {}
    for part in filter(None, text.split(";")):
        name, _, value = part.partition("=")
        if name not in _FIELDS:
            raise ParameterError(f"{VARIABLE}: unknown field {name!r}.{nearest(name, _FIELDS)}")
        fields[name] = value
    if "stage" not in fields or fields.get("kind") not in ("raise", "kill"):
        raise ParameterError(
            f"{VARIABLE}: got {text!r}, expected stage=NAME and kind=raise or kind=kill in it."
        )
    delay = float(fields.get("after", 0))
    if "within" in fields:
        delay = random.Random(int(fields.get("seed", 0))).uniform(0, float(fields["within"]))
    return Fault(
        stage=fields["stage"],
        kind=fields["kind"],
        iteration=int(fields["iteration"]) if "iteration" in fields else None,
        detail=fields.get("detail"),
        delay=delay,
        once=Path(fields["once"]) if "once" in fields else None,
    )


@contextlib.contextmanager
def armed(stage: str, iteration: int = 0, detail: str = "") -> Iterator[None]:
    """Execute a stage under the fault that the environment sets, if any."""
    text = os.environ.get(VARIABLE)
    fault = read_fault(text) if text else None
    if fault is None or not fault.concerns(stage, iteration, detail):
        yield
        return
    if fault.kind == "raise" or fault.delay <= 0:
        fault.strike()
    timer = threading.Timer(fault.delay, fault.strike)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    fault.strike()  # the stage was faster than the fault
