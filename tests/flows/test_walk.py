"""Module changes of ``ratchet run`` before the first stage.

Run with ``python tests/flows/test_walk.py FILE [a.b=value …]``, which prints the walk.

The walk is the sequence in which a reader follows the code: the functions of ``flows`` and
``tasks`` in the order in which they are first called, from the command ``run`` to the work of the
first stage. Consecutive functions of one module are one stay. Comprehensions, generated
constructors of dataclasses, imports, threads that start servers and delayed progress messages are
excluded.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from tasks.stages.faults import VARIABLE

DEMO = Path(__file__).parents[2] / "experiments" / "demo.yaml"
SMALL = ("graph_isomorphism.num_pairs=40", "settings.progress=plain")
END = ("settings.retries=0", "stage=initial_state;kind=raise")
"""The second stage fails, so that the run ends after the walk."""
BAR = 61
"""Stays; more would need a reason. The driver that also runs without Prefect takes eight, the
early start of the server two, the check for paid stages and changed defaults three, the search
for a run with an earlier version's id one, the notes of undeclared files one, the kinds of stages
in the manifest two, what a process does once three."""
FLOORS = ("flows", "tasks")
COMMAND = ("flows.cli.run", "run")
FIRST_WORK = ("tasks.build_scenario", "build_scenario")
_NO_FUNCTIONS = ("<module>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_STATE_REQUESTS = ("_states", "_waits", "find_flow_run")  # every second, so at any place
_ASIDE = (
    *("TemporaryServer", "PlainLines._write_status", "PrefectArtifacts._update"),
    *_STATE_REQUESTS,
)


class Walk:
    """Profile function that records the functions that a command calls."""

    def __init__(self) -> None:
        self.stays: list[tuple[str, list[str]]] = []
        self._seen: set[tuple[str, str]] = set()
        self._is_on = False
        self.ended = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or self.ended:
            return
        place = (str(frame.f_globals.get("__name__", "")), frame.f_code.co_qualname)
        self._is_on = self._is_on or place == COMMAND
        if not self._is_on or place in self._seen or not _is_read(*place) or _is_aside(frame):
            return
        self._seen.add(place)
        if not self.stays or self.stays[-1][0] != place[0]:
            self.stays.append((place[0], []))
        self.stays[-1][1].append(place[1])
        self.ended = place == FIRST_WORK

    def __enter__(self) -> Walk:
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def __str__(self) -> str:
        lines = [f"{n:3} {name}: {', '.join(f)}" for n, (name, f) in enumerate(self.stays, 1)]
        floors = [_floor(name) for name, _ in self.stays]
        upwards = sum(after < before for before, after in pairwise(floors))
        return "\n".join([*lines, f"{len(lines)} stays, {upwards} of them upwards"])


def _floor(module: str) -> int:
    return 0 if module.startswith("flows.cli") else 1 + FLOORS.index(module.partition(".")[0])


def _is_read(module: str, function: str) -> bool:
    of_ours = module.partition(".")[0] in FLOORS
    return of_ours and not function.endswith(_NO_FUNCTIONS) and "__create_fn__" not in function


def _is_aside(frame: FrameType) -> bool:
    """Return whether a function runs during imports, or to start a server."""
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name == "importlib._bootstrap" or frame.f_code.co_qualname.startswith(_ASIDE):
            return True
        frame = frame.f_back
    return False


def walk(file: str, overrides: Sequence[str], folder: str) -> Walk:
    """Run an experiment file in this process and return the walk."""
    places = [f"settings.home={folder}/home", f"settings.runs={folder}/runs"]
    command = ["run", file, *places, "settings.tracking=false", END[0], *overrides]
    with Walk() as noted:
        done = CliRunner(env={VARIABLE: END[1]}).invoke(app, command)
    assert noted.ended, done.output
    return noted


@pytest.mark.slow
def test_a_run_changes_module_rarely_before_its_first_stage(prefect_server, tmp_path):
    noted = walk(str(DEMO), SMALL, str(tmp_path))
    assert len(noted.stays) <= BAR, str(noted)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        sys.stdout.write(f"{walk(sys.argv[1], sys.argv[2:], scratch)}\n")
