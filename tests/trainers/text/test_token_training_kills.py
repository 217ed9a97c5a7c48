"""A run that learns from tokens is killed about its steps; the service trains the same weights."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from ratchet.service.launch import ServiceAddress, service_command

HERE = Path(__file__).parent
MODELS = HERE.parents[1] / "service"
sys.path.insert(0, str(MODELS))

from micro_model import write_micro_model  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@contextmanager
def service(home, model):
    home.mkdir()
    process = subprocess.Popen(service_command(home=str(home), model=str(model)))
    try:
        while (address := ServiceAddress.read(home / "llm")) is None:
            assert process.poll() is None
            time.sleep(0.05)
        yield address.url
    finally:
        process.terminate()
        process.wait(240)


def train(home, url, step, *, before=False):
    """Train until the end, or until the process is killed at a step; return how it ended."""
    command = [sys.executable, str(HERE / "killed_token_training.py"), str(home / "run")]
    done = subprocess.run(
        [*command, str(step), str(int(before))],
        env={**os.environ, "RATCHET_LLM_URL": url},
        check=False,
    )
    return done.returncode


def outcome(home, url):
    """Return the final models' names, all weights and moments, and each session's verbs."""
    (state,) = (home / "run").rglob("state.json")
    groups = json.loads(state.read_text())["shared_model_groups"]
    names = {name: group["current_model_name"] for name, group in groups.items()}
    weights = {
        str(file.relative_to(home)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted((home / "llm" / "models").rglob("*.safetensors"))
    }
    with urlopen(f"{url.removesuffix('/v1')}/api/v1/training_runs") as answer:
        verbs = [run["next_seq_id"] - 1 for run in json.load(answer)["training_runs"]]
    return names, weights, verbs


@pytest.mark.in_turn(4, of="kills")
def test_a_run_killed_about_its_steps_trains_the_same_weights_with_each_step_once(tmp_path):
    model = write_micro_model(tmp_path / "ratchet-tiny")
    found = []
    # Steps are counted per process: in the middle of the first training stage, and at its end.
    for label, kills in (("whole", []), ("killed", [(1, True), (2, False)])):
        home = tmp_path / label
        with service(home, model) as url:
            for step, before in kills:
                assert train(home, url, step, before=before) == -signal.SIGKILL
            assert train(home, url, -1) == 0
            found.append(outcome(home, url))
    assert found[0] == found[1]
    names, weights, verbs = found[0]
    assert sorted(names) == ["prover", "verifier"]
    assert verbs == [5, 3, 5, 3], "newest first: two verbs a step, and one that saves"
    assert len(set(weights.values())) == 2 * 4, "each saved model is another, and has its moments"
