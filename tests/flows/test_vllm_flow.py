"""A run that samples with vLLM itself gives the same bits after kills (``make test-vllm``)."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from ratchet.language_models.engines import vllm_rollouts
from tests.flows.test_language_flow import CHOSEN as SMALL

PYTHON = Path(__file__).parents[2] / vllm_rollouts.DEFAULT_PYTHON
CHOSEN = {
    **SMALL,
    "rl": {"num_iterations": 3},
    "agents": {
        "_default": {
            **SMALL["agents"]["_default"],
            "small_model": {"layers": 1, "d_model": 64, "heads": 2, "context_length": 32},
        }
    },
    "language": {**SMALL["language"], "engine": {"name": "vllm", "enforce_eager": True}},
}

NEEDS_VLLM = pytest.mark.skipif(not PYTHON.is_file(), reason="needs `make setup-vllm`")
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), NEEDS_VLLM]


def kill_first_worker(killed):
    """Kill the first worker that has been seen computing for a while."""
    while not killed:
        for process in psutil.process_iter(["cmdline"]):
            if any(part.endswith("vllm_worker.py") for part in process.info["cmdline"] or ()):
                time.sleep(5)  # while it starts or generates: at any time the result is the same
                os.kill(process.pid, signal.SIGKILL)
                killed.append(process.pid)
                return
        time.sleep(0.1)


def test_killed_trainers_and_workers_change_no_bit(lab, tmp_path, monkeypatch):
    monkeypatch.setenv(vllm_rollouts.PYTHON_VARIABLE, str(PYTHON))
    cut = lab.settings(iterations_per_task=1)
    lab.kill("stage=train;iteration=2;within=0.1", CHOSEN, cut)
    resumed = lab.run(CHOSEN, cut)
    assert resumed["cached"] > 0
    other = lab.settings(iterations_per_task=3, home=str(tmp_path / "other"), retries=2)
    killed = []
    killer = threading.Thread(target=kill_first_worker, args=(killed,))
    killer.start()
    retried = lab.run(CHOSEN, other)
    killer.join(10)
    assert killed
    assert resumed["states"] == retried["states"]
    stages = [home / "store" / "stages" for home in (lab.folder / "home", tmp_path / "other")]
    last = [lab.hashes(folder / resumed["states"]["main"]) for folder in stages]
    assert last[0] == last[1]
