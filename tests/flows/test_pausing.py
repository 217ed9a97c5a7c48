"""Runs that a user pauses or cancels in Prefect react between two stages."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from prefect.client.schemas.objects import State, StateDetails, StateType
from prefect.exceptions import TerminationSignal
from prefect.states import Cancelling, Crashed, Running

from flows.runs import pause_and_cancel as pausing

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


def heed(monkeypatch, states, *, root="a", last_state_check=0.0, lasting="http://127.0.0.1:4200"):
    """Let a run query a server whose flow run has these states in sequence."""
    run = SimpleNamespace(last_state_check=last_state_check, folder=Folder())
    left = list(states)
    monkeypatch.setattr(pausing, "SECONDS", 0.01)
    monkeypatch.setattr(pausing, "PREFECT_UI_URL", SimpleNamespace(value=lambda: lasting))
    monkeypatch.setattr(pausing, "find_flow_run", lambda _: SimpleNamespace(state=left.pop(0)))
    monkeypatch.setattr(pausing.flow_run, "get_id", lambda: "a")
    monkeypatch.setattr(pausing.flow_run, "get_root_flow_run_id", lambda: root)
    try:
        asyncio.run(pausing.handle_pause_and_cancel(run))
    finally:
        run.left = left
    return run


def test_a_paused_run_waits_until_it_is_resumed(monkeypatch):
    run = heed(monkeypatch, [PAUSED, PAUSED, Running()])
    assert (run.left, run.folder.events) == ([], ["paused", "resumed"])
    run = heed(monkeypatch, [Running(), PAUSED, Running(), Running()], root="sweep")
    assert (run.left, run.folder.events) == ([], ["paused", "resumed"]), "its sweep was paused"


def test_a_cancelled_run_ends_whether_paused_or_not(monkeypatch):
    for states in ([Cancelling()], [PAUSED, Cancelling()]):
        with pytest.raises(TerminationSignal):
            heed(monkeypatch, states)


def test_a_run_that_was_crashed_in_prefect_reports_the_reason(monkeypatch):
    with pytest.raises(pausing.EndedInPrefect) as raised:
        heed(monkeypatch, [Crashed(message="Its heartbeats stopped.")])
    monkeypatch.setattr(pausing, "_is_cancelled_in_prefect", lambda: False)
    folder = SimpleNamespace(run_id="one", manifest=SimpleNamespace(status="running"))
    assert pausing.classify_outcome(folder, raised.value) == (
        "interrupted",
        "interrupted: Prefect's server has set its state to Crashed: Its heartbeats stopped. Resume"
        " with `ratchet resume one`.",
    )


def test_a_suspended_run_is_handled_by_prefect(monkeypatch):
    assert heed(monkeypatch, [SUSPENDED]).folder.events == []


def test_a_server_without_a_ui_is_not_queried(monkeypatch):
    assert heed(monkeypatch, [PAUSED], lasting=None).left == [PAUSED]


def test_the_server_is_queried_rarely(monkeypatch):
    assert heed(monkeypatch, [PAUSED], last_state_check=float("inf")).left == [PAUSED]
