"""Precedence of tracking URIs: settings, environment, local stack, database."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flows.process.stack_file import ProcessMark, Stack
from flows.process.tracking_uri import choose_tracking_uri


def test_the_precedence_of_tracking_uris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_tracking_uri(tmp_path, None) == f"sqlite:///{tmp_path / 'mlflow.db'}"
    Stack(1, 2, True, ProcessMark.from_pid(os.getpid())).write(tmp_path)
    assert choose_tracking_uri(tmp_path, None) == "http://127.0.0.1:2"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example")
    assert choose_tracking_uri(tmp_path, None) == "http://tracking.example"
    assert choose_tracking_uri(tmp_path, "http://chosen.example") == "http://chosen.example"


def test_a_stack_that_is_down_is_not_used(tmp_path: Path) -> None:
    Stack(1, 2, True, ProcessMark(pid=os.getpid(), started=1.0)).write(tmp_path)
    assert choose_tracking_uri(tmp_path, None).startswith("sqlite:///")
