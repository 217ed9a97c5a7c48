"""A custom body replaces the scenario's: it learns, is resumed, and enters keys."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ratchet import ExperimentSettings, HyperParameters
from ratchet.agents.networks.registry import NETWORKS, register_network
from ratchet.errors import ParameterError, UnknownNameError
from ratchet.plugins import load_module
from ratchet.scenarios import build_scenario_instance
from tasks.tensordict.keys import ArmKeys
from trainers.registry import build_trainer
from trainers.tensordict.states.state import State

EXAMPLES = Path(__file__).parents[2] / "examples"
CUSTOM = "custom_network.py:RecurrentBody"


def parameters(network: str | None = CUSTOM, **changes) -> HyperParameters:
    small = HyperParameters(
        scenario="binary_erasure_channel",
        trainer="vanilla_ppo",
        dataset="generated",
        interaction_protocol="adp",
        binary_erasure_channel={"num_datapoints": 60},
        agents={"verifier": {"network": network}},
        rl={
            "frames_per_batch": 32,
            "minibatch_size": 8,
            "num_iterations": 3,
            "num_test_iterations": 2,
        },
    )
    return small.replace({path.replace("__", "."): value for path, value in changes.items()})


def build(hyper_params: HyperParameters, base_dir: Path = EXAMPLES):
    instance = build_scenario_instance(hyper_params, ExperimentSettings(), base_dir=base_dir)
    return build_trainer(hyper_params, instance, ExperimentSettings(), base_dir)


@pytest.mark.slow
def test_a_verifier_with_memory_learns():
    before, after = load_module(EXAMPLES / "custom_network.py").train(num_iterations=12)
    assert before < 0.65
    assert after > 0.85


@pytest.mark.parametrize("shared", [True, False])
def test_only_the_agent_that_names_it_has_it(shared):
    agents = build(parameters(rl__use_shared_body=shared)).scenario_instance.agents
    assert type(agents["verifier"].body).__name__ == "RecurrentBody"
    assert type(agents["prover"].body).__name__ == "ErasureBody"
    assert (agents["verifier"].value_body is None) == shared
    if not shared:
        assert type(agents["verifier"].value_body).__name__ == "RecurrentBody"
        assert agents["verifier"].value_body.each is None  # the critic reads the whole only


@pytest.mark.parametrize("changes", [{}, {"rl__use_shared_body": False}])
def test_training_in_pieces_ends_in_the_same_bits(changes, tmp_path):
    hyper_params = parameters(**changes)
    whole = build(hyper_params)
    whole.train()
    state = build(hyper_params).initial_state()
    for iteration in range(3):
        state.save(tmp_path / str(iteration))
        staged = build(hyper_params)
        staged.state = State.load(tmp_path / str(iteration))
        staged.run_iterations(iteration, iteration + 1)
        state = staged.state
    assert state == whole.state
    assert staged.run_test() == whole.test_results["test"]


def test_its_code_is_part_of_every_key_and_its_path_is_not(tmp_path):
    shutil.copy(EXAMPLES / "custom_network.py", tmp_path)

    def keys(network: str | None, base_dir: Path):
        return ArmKeys("main", parameters(network), base_dir=str(base_dir))

    here = keys(CUSTOM, EXAMPLES)
    there = keys(f"../{tmp_path.name}/{CUSTOM}", tmp_path)
    without = keys(None, EXAMPLES)
    for stage in ("initial_state", "test"):
        assert getattr(here, stage)().key == getattr(there, stage)().key
        assert getattr(here, stage)().key != getattr(without, stage)().key
    assert "custom_network" in here.train(0, 1).fingerprint.modules
    copy = tmp_path / "custom_network.py"
    copy.write_text(copy.read_text().replace("torch.tanh(self.hear", "torch.relu(self.hear"))
    edited = keys(f"../{tmp_path.name}/{CUSTOM}", tmp_path)
    assert edited.train(0, 1).key != here.train(0, 1).key
    assert edited.build_scenario().key == here.build_scenario().key == without.build_scenario().key


def test_it_may_be_registered_or_installed(install, monkeypatch):
    monkeypatch.setattr(NETWORKS, "_classes", {})
    source = (EXAMPLES / "custom_network.py").read_text()
    install("memories", "networks", "recurrent", "RecurrentBody", source)
    installed = build(parameters("recurrent")).scenario_instance.agents["verifier"].body
    assert type(installed).__module__ == "memories"
    register_network("mine")(type(installed))
    again = build(parameters("mine")).scenario_instance.agents["verifier"].body
    assert type(again) is type(installed)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"network": "recurent"}, UnknownNameError, r"verifier\.network: unknown 'recurent'"),
        ({"network": "custom_network.py:train"}, ParameterError, r"verifier\.network: .*a class"),
        ({"network": "custom_network.py:AgentPlan"}, ParameterError, r"subclass of .*AgentBody"),
        (
            {"agents__verifier__is_random": True},
            ParameterError,
            r"agents\.verifier: got is_random=true and network='custom_network.py:RecurrentBody'",
        ),
        ({"agents__verifier__use_manual_architecture": True}, ParameterError, r"expected at most"),
    ],
)
def test_what_does_not_fit_is_refused(changes, error, message):
    with pytest.raises(error, match=message):
        build(parameters(**changes))
