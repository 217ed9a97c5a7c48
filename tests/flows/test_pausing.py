"""What a run does between two stages when somebody has paused or cancelled it in Prefect."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from prefect.client.schemas.objects import State, StateDetails, StateType
from prefect.exceptions import TerminationSignal
from prefect.states import Cancelling, Running

from flows.runs import pausing

PAUSED: State[object] = State(type=StateType.PAUSED, name="Paused")
SUSPENDED: State[object] = State(
    type=StateType.PAUSED, name="Suspended", state_details=StateDetails(pause_reschedule=True)
)


class Folder:
    run_id = "one"

    def __init__(self):
        self.events = []

    def log_event(self, kind, message):
        self.events.append(kind)


def heed(monkeypatch, states, *, last_heeded=0.0, lasting="http://127.0.0.1:4200"):
    """Let a run ask a server whose flow run has these states, one after the other."""
    run = SimpleNamespace(last_heeded=last_heeded, folder=Folder())
    left = list(states)
    monkeypatch.setattr(pausing, "SECONDS", 0.01)
    monkeypatch.setattr(pausing, "PREFECT_UI_URL", SimpleNamespace(value=lambda: lasting))
    monkeypatch.setattr(pausing, "find_flow_run", lambda _: SimpleNamespace(state=left.pop(0)))
    monkeypatch.setattr(pausing.flow_run, "get_id", lambda: "a")
    monkeypatch.setattr(pausing.flow_run, "get_root_flow_run_id", lambda: "a")
    try:
        asyncio.run(pausing.heed(run))
    finally:
        run.left = left
    return run


def test_a_paused_run_waits_until_it_is_resumed(monkeypatch):
    run = heed(monkeypatch, [PAUSED, PAUSED, Running()])
    assert (run.left, run.folder.events) == ([], ["paused", "resumed"])


def test_a_run_that_is_cancelled_ends_paused_or_not(monkeypatch):
    for states in ([Cancelling()], [PAUSED, Cancelling()]):
        with pytest.raises(TerminationSignal):
            heed(monkeypatch, states)


def test_a_suspended_run_is_left_to_prefect(monkeypatch):
    assert heed(monkeypatch, [SUSPENDED]).folder.events == []


def test_a_server_that_nobody_looks_at_is_not_asked(monkeypatch):
    assert heed(monkeypatch, [PAUSED], lasting=None).left == [PAUSED]


def test_the_server_is_asked_seldom(monkeypatch):
    assert heed(monkeypatch, [PAUSED], last_heeded=float("inf")).left == [PAUSED]
