"""Injected faults occur at the configured stage and time, and only once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ratchet.errors import ParameterError
from tasks.stages import faults


def test_a_fault_occurs_only_in_its_stage_and_once(monkeypatch, tmp_path):
    once = tmp_path / "once"
    monkeypatch.setenv(faults.VARIABLE, f"stage=train;iteration=10;kind=raise;once={once}")
    with faults.armed("train", 5), faults.armed("test", 10):
        pass
    with pytest.raises(faults.InjectedFault), faults.armed("train", 10):
        raise AssertionError("the stage must not start")
    with faults.armed("train", 10):
        pass


def test_no_fault_occurs_without_the_variable(monkeypatch):
    monkeypatch.delenv(faults.VARIABLE, raising=False)
    with faults.armed("train", 10):
        pass


def test_a_kill_occurs_at_a_seeded_time_or_at_the_end_of_the_stage():
    first = faults.read_fault("stage=train;kind=kill;within=2;seed=1")
    second = faults.read_fault("stage=train;kind=kill;within=2;seed=2")
    again = faults.read_fault("stage=train;kind=kill;within=2;seed=1")
    assert first == again
    assert 0 <= first.delay <= 2
    assert first.delay != second.delay
    code = "from tasks.stages import faults\nwith faults.armed('train'): pass\nraise SystemExit(3)"
    environment = {faults.VARIABLE: "stage=train;kind=kill;after=60", "PYTHONPATH": "."}
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == -9
    )


@pytest.mark.parametrize(
    "text", ["stage=train", "kind=kill", "stage=train;kind=slow", "stge=train"]
)
def test_an_invalid_value_is_refused(text):
    with pytest.raises(ParameterError, match="RATCHET_FAULT"):
        faults.read_fault(text)
