"""REINFORCE and opponent shaping learn from rewards alone, starting from pretrained bodies."""

from __future__ import annotations

import pytest

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from trainers.registry import build_trainer

KINDS = {
    "reinforce": {
        "interaction_protocol": "solo_verifier",
        "rl": {"num_iterations": 40, "num_epochs": 1, "lr": 0.001},
    },
    "spg": {
        "interaction_protocol": "nip",
        "nip_protocol": {"max_message_rounds": 4},
        "rl": {"num_iterations": 14, "lr": 0.0003},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_pretrained_verifier_learns_to_decide(kind):
    own = KINDS[kind]
    hyper_params = HyperParameters(
        scenario="graph_isomorphism",
        trainer=kind,
        dataset="generated",
        pretrain_agents=True,
        solo_agent={"num_epochs": 20, "batch_size": 128, "learning_rate": 0.002},
        graph_isomorphism={"num_pairs": 1500, "prop_score_1": 0.1, "prop_score_2": 0.9},
        agents={"_default": {"num_transformer_layers": 1}},
        **{**own, "rl": {"frames_per_batch": 512, "minibatch_size": 128, **own["rl"]}},
    )
    settings = ExperimentSettings()
    scenario = build_scenario_instance(hyper_params, settings)
    trainer = build_trainer(hyper_params, scenario, settings)
    trainer.train()
    curve = [
        record.values["verifier.accuracy"] for record in trainer.history if record.stage == "train"
    ]
    assert sum(curve[:3]) / 3 < 0.65
    assert sum(curve[-3:]) / 3 > 0.8
