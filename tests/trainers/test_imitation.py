"""Agents learn to imitate, and no other part of them changes."""

from __future__ import annotations

import json

import pytest
import torch

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import DataError, ParameterError
from ratchet.rollouts.files import save_rollouts
from ratchet.scenarios import build_scenario_instance
from trainers.compatibility import check_combination
from trainers.tensordict.imitation.demonstrations import ScriptedDemonstrator
from trainers.tensordict.vanilla_ppo import VanillaPpoTrainer

PROVER = {
    "imitation__agents": ["prover"],
    "imitation__num_iterations": 30,
    "imitation__minibatch_size": 8,
    "imitation__lr": 0.02,
    "nip_protocol__min_message_rounds": 4,
    "agents__prover__tie_exchanges": True,
    "agents__prover__num_gnn_layers": 2,
}


def made(tiny, **changes):
    trainer = tiny.trainer(tiny.parameters(**{**PROVER, **changes}))
    trainer.initial_state()
    return trainer


@pytest.mark.slow
def test_a_prover_learns_to_answer_as_the_hand_made_one_does():
    agent = {"num_transformer_layers": 1, "use_batch_norm": False, "num_gnn_layers": 3}
    hyper_params = HyperParameters(
        scenario="graph_isomorphism",
        trainer="vanilla_ppo",
        dataset="generated",
        graph_isomorphism={"num_pairs": 600},
        nip_protocol={"max_message_rounds": 3, "min_message_rounds": 3},
        agents={"_default": {**agent, "tie_exchanges": True}},
        rl={"frames_per_batch": 1536},
        imitation={"agents": ["prover"], "num_iterations": 20, "lr": 0.003},
    )
    instance = build_scenario_instance(hyper_params, ExperimentSettings())
    trainer = VanillaPpoTrainer(hyper_params, instance, ExperimentSettings())
    trainer.initial_state()
    metrics = trainer.imitate("prover").metrics
    assert len(metrics) == 20
    looks = [each for each in metrics if "prover.test_correct_actions" in each]
    assert len(looks) == 10
    assert looks[-1] is metrics[-1]
    assert metrics[-1]["prover.train_loss"] < metrics[0]["prover.train_loss"] - 0.4
    assert looks[-1]["prover.test_loss"] < looks[0]["prover.test_loss"] - 0.4
    gained = looks[-1]["prover.test_correct_actions"] - looks[0]["prover.test_correct_actions"]
    assert gained > 0.1


def test_imitating_changes_no_state_and_the_same_again_is_the_same(tiny):
    trainer = made(tiny, imitation__num_iterations=2)
    before = trainer.state
    result = trainer.imitate("prover")
    assert trainer.state == before
    torch.manual_seed(3)  # nothing may depend on the global generator
    again = made(tiny, imitation__num_iterations=2).imitate("prover")
    assert again.metrics == result.metrics
    assert all(torch.equal(again.weights[name], t) for name, t in result.weights.items())
    trainer.load_imitated("prover", result)
    after = trainer.state
    changed = {
        f"{agent}.{name}"
        for agent, tensors in before.agents.items()
        for name, tensor in tensors.items()
        if not torch.equal(tensor, after.agents[agent][name])
    }
    assert {name.split(".")[0] for name in changed} == {"prover"}
    assert {name.split(".")[1] for name in changed} == {"body", "policy_head"}
    assert after.normalization == before.normalization
    assert after.optimizer == before.optimizer


def test_training_in_one_go_is_the_same_as_its_stages(tiny):
    changes = {"imitation__num_iterations": 2, "imitation__agents": ["prover", "verifier"]}
    whole = tiny.trainer(tiny.parameters(**{**PROVER, **changes}))
    whole.train()
    staged = made(tiny, **changes)
    results = {name: staged.imitate(name) for name in ("verifier", "prover")}
    for name, result in results.items():
        staged.load_imitated(name, result)
    staged.run_iterations(0, 3)
    assert staged.state == whole.state
    logged = [r.values for r in whole.history if r.stage == "imitate.prover"]
    assert logged == results["prover"].metrics


def test_what_is_equally_good_to_a_hand_made_agent_is_right(tiny):
    trainer = made(tiny)
    teachers = ScriptedDemonstrator(trainer)
    frames = teachers.held_out()
    frames = frames[frames["agents", "active"][:, 0, 0]]
    assert teachers.right(frames, frames, "prover").all()
    asked = frames["message"][:, 0, 0].argmax(-1)  # of four nodes each
    right = []
    for node in range(2 * tiny.NODES):
        done = frames.clone()
        done["agents", "message"][:, 0] = node
        right.append(teachers.right(frames, done, "prover"))
        same_graph = (asked >= tiny.NODES) == (node >= tiny.NODES)
        assert not (right[-1] & same_graph).any(), "an answer names a node of the other graph"
    number = torch.stack(right).sum(0)
    assert (number >= 1).all()
    assert (number > 1).any(), "graphs this small have nodes that are alike"


def test_a_runs_rollouts_are_imitated_as_they_are(tiny, tmp_path):
    model = made(tiny)
    about = {"agent_names": json.dumps(["prover", "verifier"])}
    files = [tmp_path / f"{iteration}.safetensors" for iteration in range(2)]
    for iteration, file in enumerate(files):
        save_rollouts(model.sample_rollouts(iteration), file, about)
    learner = made(tiny, imitation__source="run:model", seed=5)
    result = learner.imitate("prover", files)
    assert result.metrics[-1]["prover.train_loss"] < result.metrics[0]["prover.train_loss"]
    assert 0 <= result.metrics[-1]["prover.test_correct_actions"] <= 1
    with pytest.raises(ParameterError, match="no rollouts were passed"):
        learner.imitate("prover")
    other = made(tiny, imitation__source="run:model", nip_protocol__max_message_rounds=6)
    with pytest.raises(DataError, match=r"\[6, 1, 1, 8\] \(rounds"):
        other.imitate("prover", files)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"imitation__agents": ["prver"]}, r"no 'prver'.*Did you mean 'prover'"),
        ({"agents__prover__is_random": True}, r"agents\.prover\.is_random is true"),
        ({"interaction_protocol": "adp"}, "the scripted agents support no other game"),
        ({"trainer": "solo_agent"}, "'solo_agent', which does not support"),
    ],
)
def test_who_cannot_imitate_is_refused_before_anything_is_built(tiny, changes, message):
    with pytest.raises(ParameterError, match=message):
        check_combination(tiny.parameters(**{**PROVER, **changes}))


def test_a_source_is_hand_made_or_a_run(tiny):
    for wrong in ("manual", "run:"):
        with pytest.raises(ParameterError, match=r"imitation\.source.*'run:' and the id"):
            tiny.parameters(imitation__source=wrong)
