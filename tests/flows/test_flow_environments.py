"""Experiments in environments, end to end: learning, and the same result after a kill."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ratchet.experiment_files.loading import load_experiment

pytestmark = pytest.mark.slow

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
GAMES = {
    "batched": {"dataset": "CartPole-v1"},
    "simulated": {"dataset": "CartPole-v1", "implementation": "simulated"},
}


def hyper_params(lab, dataset, **section):
    return lab.hyper_params(
        scenario="gymnasium",
        dataset=dataset,
        trainer="vanilla_ppo",
        pretrain_agents=False,
        gymnasium={"num_envs": 4, "num_test_episodes": 5, **section},
        graph_isomorphism={},
        rl={
            "num_iterations": 8,
            "frames_per_batch": 256,
            "minibatch_size": 64,
            "num_epochs": 4,
            "normalize_observations": True,
        },
    )


@pytest.mark.in_turn(4, of="kills")
@pytest.mark.parametrize(
    "game", ["batched", pytest.param("simulated", marks=pytest.mark.exhaustive)]
)
def test_a_run_killed_during_episodes_gives_the_same_result(lab, game):
    """Same SHA-256 of weights, optimizer and unfinished episodes; same metrics."""
    chosen = hyper_params(lab, **GAMES[game])
    whole = lab.settings(iterations_per_task=8, store=str(lab.folder / "whole"), run_id="whole")
    expected = lab.run(chosen, whole)
    pieces = lab.settings(iterations_per_task=2)
    lab.kill("stage=train;iteration=4;within=0.2;seed=5", chosen, pieces)
    result = lab.run(chosen, pieces)
    assert result["states"] == expected["states"]
    stage = lab.folder / "whole" / "stages" / expected["states"]["main"]
    assert lab.weights(result) == lab.hashes(stage)
    assert lab.metrics(result) == lab.metrics(expected)
    assert result["cached"] >= 3
    lengths = [dict(values)["mean_episode_length"] for *_, values in lab.metrics(result)[-2:-1]]
    assert max(lengths) > 0


def test_test_videos_are_stored_with_the_run_and_shown_in_the_report(lab):
    chosen = hyper_params(lab, "CartPole-v1", num_test_videos=2)
    chosen["rl"]["num_iterations"] = 1
    folder = Path(lab.run(chosen)["folder"])
    films = sorted(path.name for path in (folder / "videos" / "main").iterdir())
    assert films == ["test-0.gif", "test-1.gif"]
    assert (folder / "report.html").read_text().count("data:image/gif;base64,") == 2


@pytest.mark.parametrize(
    ("name", "agent", "enough"),
    [
        pytest.param("cartpole", "agent", 475, marks=pytest.mark.exhaustive),
        pytest.param("simple_spread", "agent_0", -13, marks=pytest.mark.exhaustive),
    ],
)
def test_the_shipped_experiments_learn(lab, name, agent, enough):
    loaded = load_experiment(str(EXPERIMENTS / f"{name}.yaml"), [])
    result = lab.run(
        loaded.hyper_params.to_dict(),
        lab.settings(iterations_per_task=20, tracking=True),
        environment={"OMP_NUM_THREADS": "1", **os.environ},
    )
    assert result["metrics"]["main"]["test"][f"test_{agent}.mean_episode_reward"] >= enough
    table = json.loads((Path(result["folder"]) / "tables" / "main-test.json").read_text())
    assert len(table["columns"][f"reward.{agent}"]) == 100
    report = (Path(result["folder"]) / "report.html").read_text()
    assert "mean return" in report
