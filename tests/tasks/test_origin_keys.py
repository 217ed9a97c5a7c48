"""Keys of stages based on other runs depend on their content, not on their names."""

from __future__ import annotations

import pytest

from ratchet.parameters.hyper_parameters import HyperParameters
from tasks.stages.sequence import recorded_calls
from tasks.tensordict.keys import ArmKeys

PLAIN = {
    "scenario": "graph_isomorphism",
    "trainer": "vanilla_ppo",
    "dataset": "generated",
    "pretrain_agents": True,
    "rl": {"num_iterations": 5},
}
LOADED = {
    "agents.verifier.load_checkpoint_and_parameters": True,
    "agents.verifier.checkpoint_run_id": "one",
    "agents.verifier.checkpoint_version": "3",
}
SCHEDULE = {"kind": "contiguous_periodic", "period": 2, "start": 0, "stop": 1}


def make_keys(changes=None, digest=None, pins=None):
    hyper_params = HyperParameters(**PLAIN).replace(changes or {})
    checkpoints = {"verifier": digest} if digest else None
    return ArmKeys("main", hyper_params, checkpoints=checkpoints, pins=pins)


def test_keys_depend_on_the_weights_of_a_loaded_agent_and_not_on_its_run():
    one, other = (
        make_keys({**LOADED, "agents.verifier.checkpoint_run_id": run}, "a" * 64)
        for run in ("one", "other")
    )
    assert one.initial_state().key == other.initial_state().key
    assert one.state_key(5) == other.state_key(5)
    assert one.test().key == other.test().key
    changed = make_keys(LOADED, "b" * 64)
    assert changed.initial_state().key != one.initial_state().key
    assert changed.state_key(5) != one.state_key(5)
    assert changed.build_scenario().key == one.build_scenario().key
    assert one.initial_state().inputs["checkpoint.verifier"] == "a" * 64
    assert one.pretrained_agents == ("prover",)


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({"seed": 1}, True),
        ({"solo_agent.num_epochs": 3}, True),
        ({"solo_agent.learning_rate": 0.1}, True),
        ({"rl.max_grad_norm": 2.0}, True),
        ({"rl.body_lr_factor": {"actor": 2, "critic": 2}}, True),
        ({"rl.use_shared_body": False}, True),
        ({"d_representation": 8}, True),
        ({"agents.prover.d_gnn": 8}, True),
        ({"agents.prover.body_lr_factor": {"actor": 2, "critic": 2}}, True),
        ({"graph_isomorphism.num_pairs": 20}, True),
        ({"nip_protocol.max_message_rounds": 3}, True),
        ({"rl.lr": 0.1}, False),
        ({"rl.num_iterations": 9}, False),
        ({"rl.num_test_iterations": 2}, False),
        ({"rl.gamma": 0.5}, False),
        ({"ppo.clip_epsilon": 0.1}, False),
        ({"agents.prover.update_schedule": SCHEDULE}, False),
        ({"agents.verifier.update_schedule": SCHEDULE}, False),
        ({"agents.verifier.agent_lr_factor": {"actor": 2, "critic": 2}}, False),
        ({"debate_protocol.max_message_rounds": 3}, False),
    ],
)
def test_the_key_of_pretraining_changes_only_with_its_inputs(change, counts):
    before, after = make_keys().pretrain("prover").key, make_keys(change).pretrain("prover").key
    assert (before != after) == counts


def test_a_retest_has_one_test_for_each_state_in_order():
    change = {"base_run.base_run_type": "rerun_tests", "base_run.run_id": "one"}
    pins = {("pretrained_state", 0): "0" * 64, ("train", 3): "3" * 64, ("train", 2): "2" * 64}
    keys = make_keys(change, pins=pins)
    assert keys.only_tests
    assert keys.tested_iterations == [0, 2, 3]
    states = [keys.test(iteration=i).inputs["state"] for i in keys.tested_iterations]
    assert states == ["0" * 64, "2" * 64, "3" * 64]
    call = keys.test(iteration=2)
    assert (call.iteration, call.name) == (2, "test")
    calls = recorded_calls(keys, [("test", 2)])
    assert list(calls) == [("build_scenario", 0), ("test", 0), ("test", 2), ("test", 3)]
    assert calls["test", 2].key == call.key != calls["test", 3].key
    assert make_keys().tested_iterations == [5]


def test_rollouts_depend_on_a_state_and_not_on_the_sample_period():
    keys = make_keys()
    call = keys.rollouts(2)
    assert call.inputs["state"] == keys.state_key(2)
    assert recorded_calls(keys, [("rollouts", 2), ("train", 2)])["rollouts", 2].key == call.key
    assert keys.samples_rollouts
    solo = make_keys({"trainer": "solo_agent", "pretrain_agents": False})
    assert not solo.samples_rollouts
