"""The shipped chat model experiments learn, with the real service and real jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.experiment_files.loading import load_experiment
from ratchet.statistics.results import accuracy
from ratchet.tracking import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(1000)]

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SETTINGS = {"num_rollout_workers": 64, "poll_seconds": 0.2, "poll_seconds_max": 1}


@pytest.fixture(scope="module")
def lab(new_lab):
    """Return one home for both experiments: the tiny model is built once."""
    return new_lab()


def parameters(name, **changes):
    chosen = load_experiment(EXPERIMENTS / name)
    return chosen.hyper_params.replace(changes).to_dict()


def first_and_last(result):
    """Return the accuracies of the first and the last test, with intervals."""
    folder = RunFolder(Path(result["folder"])).path / "transcripts" / "main"
    found = []
    for name in ("test-0.jsonl", "test.jsonl"):
        rollouts = [json.loads(line) for line in (folder / name).read_text().split("\n")[:-1]]
        columns = {key: [one[key] for one in rollouts] for key in ("datapoint_id", "correct")}
        found.append(accuracy(columns))
    return found


def test_expert_iteration_learns_despite_a_kill(lab):
    chosen = parameters("text_demo.yaml", **{"rl.num_iterations": 3})
    settings = lab.settings(**SETTINGS)
    lab.kill("stage=await_fine_tune_jobs;iteration=1", chosen, settings)
    result = lab.run(chosen, settings)
    assert result["cached"] > 0
    first, last = first_and_last(result)
    assert first.n == last.n == 300
    assert 0.5 < first.value < 0.65
    assert last.value > first.value + 0.15
    assert last.low > first.high


def test_malt_learns_from_preferences(lab):
    chosen = parameters("text_malt.yaml", **{"rl.num_iterations": 4})
    first, last = first_and_last(lab.run(chosen, lab.settings(**SETTINGS)))
    assert last.value > first.value + 0.1
    assert last.low > first.high
