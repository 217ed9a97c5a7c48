"""Early-stopped runs give the same result after a kill, and make no calls after the stop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def stop_after(iterations, metric):
    """Return a callback that stops after N iterations: no improvement reaches ``min_delta``."""
    return {
        "name": "early_stopping",
        "metric": metric,
        "min_delta": 1e9,
        "patience": iterations - 1,
    }


def tensor_params(lab):
    return lab.hyper_params(
        trainer="vanilla_ppo",
        pretrain_agents=False,
        rl={"num_iterations": 6, "frames_per_batch": 64, "minibatch_size": 32, "num_epochs": 2},
        nip_protocol={"max_message_rounds": 4},
        callbacks=[
            "gradient_statistics",
            {"name": "message_regression", "reset_on_fit": False},
            stop_after(3, "verifier.grad_norm"),
            {"name": "keep_best", "metric": "verifier.grad_norm"},
        ],
    )


def text_params():
    return {
        "scenario": "code_validation",
        "trainer": "pure_text_ei",
        "dataset": "generated",
        "rl": {"num_iterations": 5, "rollouts_per_iteration": 8},
        "text_rl": {"test_scheme": "first_and_last"},
        "code_validation": {"num_train": 8, "num_test": 4, "prompt_templates": "compact"},
        "nip_protocol": {"max_message_rounds": 3},
        "agents": {"_default": {"use_dummy_api": True}},
        "callbacks": [
            stop_after(2, "mean_episode_length"),
            {"name": "keep_best", "metric": "mean_episode_length", "mode": "min"},
        ],
    }


def iterations_of(lab, result, stage):
    return sorted(i for _, name, i, _ in lab.metrics(result) if name == stage)


@pytest.mark.in_turn(4, of="kills")
@pytest.mark.parametrize("killed", [pytest.param(2, marks=pytest.mark.exhaustive), 4])
def test_network_runs_killed_before_and_after_the_stop_give_the_same_result(lab, killed):
    params = tensor_params(lab)
    whole = lab.settings(iterations_per_task=6, store=str(lab.folder / "whole"), run_id="whole")
    expected = lab.run(params, whole)
    pieces = lab.settings(iterations_per_task=1, rollout_sample_period=2)
    lab.kill(f"stage=train;iteration={killed};within=0.05;seed={killed}", params, pieces)
    result = lab.run(params, pieces)
    assert result["states"] == expected["states"]
    stage = lab.folder / "whole" / "stages" / expected["states"]["main"]
    assert lab.weights(result) == lab.hashes(stage)
    assert lab.metrics(result) == lab.metrics(expected)
    assert iterations_of(lab, result, "train") == [0, 1, 2]
    state = json.loads((stage / "state" / "state.json").read_text())
    assert (state["iteration"], state["callbacks"]["stopped"]["iteration"]) == (6, 2)
    sampled = sorted(path.name for path in Path(result["folder"]).rglob("*.safetensors"))
    assert sampled == ["0.safetensors", "2.safetensors"]
    again = lab.run(params, pieces)
    assert (again["computed"], again["states"]) == (0, result["states"])


@pytest.mark.in_turn(4, of="kills")
@pytest.mark.parametrize(
    "fault",
    [
        "log_stats;iteration=1",
        pytest.param("sample_rollouts;iteration=3", marks=pytest.mark.exhaustive),
    ],
)
def test_chat_models_receive_no_requests_after_the_stop(lab, fault):
    params = text_params()
    whole = lab.settings(store=str(lab.folder / "whole"), run_id="whole")
    expected = lab.run(params, whole)
    assert iterations_of(lab, expected, "log_stats") == [0, 1]
    assert iterations_of(lab, expected, "sample_rollouts") == [0, 1]
    assert iterations_of(lab, expected, "create_fine_tune_jobs") == [0]
    assert iterations_of(lab, expected, "test_during_training") == [0]
    assert iterations_of(lab, expected, "test") == [5]
    lab.kill(f"stage={fault};within=0.01;seed=1", params)
    result = lab.run(params)
    assert result["states"] == expected["states"]
    stage = lab.folder / "whole" / "stages" / expected["states"]["main"]
    assert lab.weights(result) == lab.hashes(stage)
    assert sorted(lab.metrics(result)) == sorted(lab.metrics(expected))
    again = lab.run(params)
    assert (again["computed"], again["states"]) == (0, result["states"])
