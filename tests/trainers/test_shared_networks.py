"""PPO of agents with one network and a centralised critic, in PettingZoo environments."""

from __future__ import annotations

import pytest
import torch

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import ParameterError, StateError
from ratchet.scenarios import build_scenario_instance
from trainers.compatibility import check_combination
from trainers.registry import build_trainer
from trainers.tensordict.states.loaded_agents import load_earlier_agents

SHARED = {
    "shared_model_group": "all",
    "centralised_critic": True,
    "observes_agent_id": True,
    "hidden_sizes": [16],
}


def parameters(section=None, named=None, trainer="vanilla_ppo", **rl):
    return HyperParameters(
        scenario="gymnasium",
        trainer=trainer,
        dataset="mpe2.simple_spread_v3",
        gymnasium={"num_envs": 2, "num_test_episodes": 3, "environment_kwargs": {"N": 2}},
        agents={"_default": SHARED if section is None else section, **(named or {})},
        rl={
            "frames_per_batch": 60,
            "minibatch_size": 30,
            "num_epochs": 2,
            "num_iterations": 4,
            "num_normalization_steps": 60,
            **rl,
        },
    )


def make(hyper_params):
    instance = build_scenario_instance(hyper_params, ExperimentSettings())
    return build_trainer(hyper_params, instance, ExperimentSettings())


def test_a_saved_training_of_one_network_goes_on_bit_for_bit(tmp_path):
    hyper_params = parameters()
    whole = make(hyper_params)
    whole.initial_state()
    expected = whole.run_iterations(0, 3)
    found, state = [], make(hyper_params).initial_state()
    for iteration in range(3):
        state.save(tmp_path / str(iteration))
        trainer = make(hyper_params)
        trainer.state = trainer.State.load(tmp_path / str(iteration))
        found += trainer.run_iterations(iteration, iteration + 1)
        state = trainer.state
    assert (found, state) == (expected, whole.state)
    assert whole.run_test() == trainer.run_test()
    assert not torch.equal(
        state.agents["agent_0"]["body.layers.0.weight"],
        make(hyper_params).initial_state().agents["agent_0"]["body.layers.0.weight"],
    )
    for key, tensor in state.agents["agent_0"].items():
        assert torch.equal(tensor, state.agents["agent_1"][key])
    assert {name.partition(".")[0] for name in expected[0] if name.endswith(".lr")} == {"agent_0"}


def test_nobody_who_acts_needs_the_critic():
    """With a critic that returns NaN, rollouts are the same except for values."""
    trainer = make(parameters())
    trainer.initial_state()
    whole = trainer.run_test()
    agent = trainer.scenario_instance.agents["agent_0"]
    for part in (agent.value_body, agent.value_head):
        for tensor in part.parameters():
            tensor.data.fill_(float("nan"))
    assert trainer.run_test().table == whole.table


@pytest.mark.parametrize("learner", ["agent_0", "agent_1"])
def test_one_network_learns_from_those_agents_that_learn(learner):
    """Trained while one agent learns, on that agent's frames only."""
    schedule = {"kind": "alternating_periodic", "period": 1, "first_agent": learner}
    both = make(parameters({**SHARED, "update_schedule": schedule}))
    both.initial_state()
    before = both.state.agents
    metrics = both.run_iterations(0, 1)[0]
    after = both.state.agents
    assert not torch.equal(
        before["agent_0"]["policy_head.layer.weight"], after["agent_0"]["policy_head.layer.weight"]
    )
    other = {"agent_0": "agent_1", "agent_1": "agent_0"}[learner]
    assert metrics[f"{learner}.policy_loss"] != 0
    assert metrics.get(f"{other}.policy_loss", 0) == 0


def test_one_network_cannot_begin_with_two_different_ones(tmp_path):
    apart = {"hidden_sizes": [16]}
    earlier = make(parameters(apart))
    earlier.initial_state().save(tmp_path / "state")

    class Saved:
        digest, iteration = "a", 0

        def open(self):
            return tmp_path / "state"

    loads = {"load_checkpoint_and_parameters": True, "checkpoint_run_id": "r"}
    both = parameters({**apart, **loads, "shared_model_group": "all"})
    with pytest.raises(StateError, match=r"differ in the earlier run.*shared_model_group"):
        load_earlier_agents(make(both).combined_agents, both.agents, lambda *_: Saved())
    one = parameters({**apart, **loads})
    load_earlier_agents(make(one).combined_agents, one.agents, lambda *_: Saved())


def test_opponents_with_one_network_cannot_shape_each_other():
    hyper_params = parameters(trainer="spg").replace(
        {"spg.stackelberg_sequence": [["agent_0"], ["agent_1"]]}
    )
    with pytest.raises(ParameterError, match=r"agents\.agent_0\.shared_model_group.*spg"):
        check_combination(hyper_params)
