"""Heartbeats: the interval of runs from a terminal, and the hooks of the project's flows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.deployed import analysis, experiment_from_file, retest, sweep_from_file
from flows.experiment_flow import experiment
from flows.process.heartbeats import HEARTBEAT_VARIABLES, MISSED_SECONDS, emit_end
from flows.retrying import experiment as retried_experiment
from flows.runners.member_flow import experiment_member
from flows.sweep_flow import sweep

FLOWS = [experiment, retried_experiment, sweep, experiment_member]
DEPLOYED = [experiment_from_file, sweep_from_file, retest, analysis]
INTERVAL = """
from flows.process.environment import prepare_environment
prepare_environment("home")
from prefect.settings import get_current_settings
print(get_current_settings().flows.heartbeat_frequency)
"""


@pytest.mark.parametrize("flow", [*FLOWS, *DEPLOYED], ids=lambda flow: flow.name)
def test_every_flow_emits_its_end(flow) -> None:
    hooks = [flow.on_completion_hooks, flow.on_failure_hooks]
    hooks += [flow.on_cancellation_hooks, flow.on_crashed_hooks]
    assert all(emit_end in each for each in hooks)


@pytest.mark.slow
def test_a_run_from_a_terminal_sends_heartbeats_at_the_interval(tmp_path: Path) -> None:
    environment = {name: v for name, v in os.environ.items() if not name.startswith("PREFECT_")}
    process = subprocess.run(
        [sys.executable, "-c", INTERVAL],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [process.stdout.strip()] == list(HEARTBEAT_VARIABLES.values())


def test_a_run_may_be_late_by_minutes() -> None:
    (interval,) = map(int, HEARTBEAT_VARIABLES.values())
    assert MISSED_SECONDS - interval >= 300
    assert MISSED_SECONDS >= 3 * 180  # Prefect's own interval
