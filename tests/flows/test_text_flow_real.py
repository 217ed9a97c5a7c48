"""Real text trainers with seeded completions give the same result after a kill."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


def real_params(trainer):
    return {
        "scenario": "code_validation",
        "trainer": trainer,
        "dataset": "generated",
        "interaction_protocol": "nip",
        "rl": {"num_iterations": 2, "rollouts_per_iteration": 12},
        "text_rl": {"test_scheme": "all"},
        "code_validation": {"num_train": 16, "num_test": 8, "prompt_templates": "compact"},
        "pure_text_ei": {"rollout_selection_method": "weighted_sampling"},
        "nip_protocol": {"max_message_rounds": 4},
        "agents": {"_default": {"use_dummy_api": True}},
    }


@pytest.mark.parametrize(
    "trainer", ["pure_text_ei", pytest.param("pure_text_malt", marks=pytest.mark.exhaustive)]
)
def test_a_real_text_trainer_killed_in_sampling_gives_the_same_result(lab, trainer):
    params = real_params(trainer)
    whole = lab.settings(store=str(lab.folder / "whole"), run_id="whole")
    expected = lab.run(params, whole)
    lab.kill("stage=sample_rollouts;iteration=1;within=0.2;seed=1", params)
    result = lab.run(params)
    assert result["states"] == expected["states"]
    stage = lab.folder / "whole" / "stages" / expected["states"]["main"]
    assert lab.weights(result) == lab.hashes(stage)
    assert sorted(lab.metrics(result)) == sorted(lab.metrics(expected))
    assert result["metrics"]["main"]["test"].keys() >= {"test_accuracy"}
