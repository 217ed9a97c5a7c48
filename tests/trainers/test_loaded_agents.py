"""Agents that start from the weights and parameters of an earlier run."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ratchet.errors import (
    CheckPointNotFoundError,
    ParameterError,
    RunNotFoundError,
    StateError,
)
from ratchet.experiment_files.base_run import loaded_states, with_loaded_agents
from ratchet.parameters.settings import ExperimentSettings
from trainers.compatibility import check_combination
from trainers.tensordict.states.state import State
from trainers.tensordict.vanilla_ppo import VanillaPpoTrainer

WIDE = {"agents__verifier__d_gnn": 8, "rl__num_iterations": 2}
LOADED = {
    "agents__verifier__load_checkpoint_and_parameters": True,
    "agents__verifier__checkpoint_run_id": "source",
}


@pytest.fixture(scope="module")
def home(tiny, tmp_path_factory):
    """A run whose verifier is wider than usual, with the states after 1 and 2 iterations."""
    home = tmp_path_factory.mktemp("earlier")
    kept = {"home": str(home), "checkpoint_period": 1}
    for run_id in ("source", "twin"):
        tiny.trainer(tiny.parameters(**WIDE), run_id=run_id, **kept).train()
    return home


@pytest.fixture
def settings(home):
    return ExperimentSettings(home=str(home), runs=str(home / "runs"))


def _resolved(tiny, settings, **changes):
    return with_loaded_agents(tiny.parameters(**{**LOADED, **changes}), settings)


def _state_of(home, folder):
    return State.load(home / "checkpoints" / folder / "state")


def test_weights_are_those_of_the_run_and_others_are_fresh(tiny, home, settings):
    trainer = tiny.trainer(_resolved(tiny, settings), home=str(home))
    source, begun = _state_of(home, "source"), trainer.initial_state()
    fresh = tiny.trainer(tiny.parameters()).initial_state()
    only = [State(agents={"verifier": s.agents["verifier"]}) for s in (source, begun)]
    assert only[0] == only[1]
    assert State(agents={"p": begun.agents["prover"]}) == State(
        agents={"p": fresh.agents["prover"]}
    )
    assert begun.optimizer == {}
    assert begun.iteration == 0


def test_a_loaded_agent_sees_what_it_was_trained_to_see(tiny, home, settings):
    begun = tiny.trainer(_resolved(tiny, settings), home=str(home)).initial_state()
    source = _state_of(home, "source")
    assert State(normalization=begun.normalization) == State(normalization=source.normalization)
    plain = tiny.trainer(
        _resolved(tiny, settings, rl__normalize_observations=False), home=str(home)
    ).initial_state()
    assert plain.normalization["observations"]["x_mean"] == 0


def test_what_it_is_comes_from_the_run_and_how_it_learns_from_here(tiny, settings):
    slow = {"actor": 0.5, "critic": 0.5}
    hyper_params = _resolved(
        tiny, settings, agents__verifier__d_gnn=16, agents__verifier__agent_lr_factor=slow
    )
    verifier = hyper_params.agents["verifier"]
    assert verifier.d_gnn == 8
    assert verifier.agent_lr_factor.actor == 0.5
    assert verifier.checkpoint_version == "2", "what is latest now is written down"
    assert hyper_params.agents["prover"].d_gnn == 4
    assert with_loaded_agents(hyper_params, settings) == hyper_params


def test_an_earlier_version_is_loaded_when_asked_for(tiny, home, settings):
    hyper_params = _resolved(tiny, settings, agents__verifier__checkpoint_version="1")
    begun = tiny.trainer(hyper_params, home=str(home)).initial_state()
    expected = _state_of(home, "source@1").agents["verifier"]
    latest = _state_of(home, "source").agents["verifier"]
    assert all(torch.equal(begun.agents["verifier"][n], expected[n]) for n in expected)
    assert any(not torch.equal(latest[n], expected[n]) for n in expected)


def test_all_agents_are_loaded_when_the_default_says_so(tiny, home, settings):
    changes = {path.replace("verifier", "_default"): value for path, value in LOADED.items()}
    hyper_params = with_loaded_agents(tiny.parameters(**changes), settings)
    begun, source = (
        tiny.trainer(hyper_params, home=str(home)).initial_state(),
        _state_of(home, "source"),
    )
    assert State(agents=begun.agents) == State(agents=source.agents)


def test_what_is_known_of_a_state_is_its_content_not_its_run(tiny, settings):
    states = [
        loaded_states(_resolved(tiny, settings, agents__verifier__checkpoint_run_id=run), settings)
        for run in ("source", "twin")
    ]
    assert states[0]["verifier"].digest == states[1]["verifier"].digest
    earlier = _resolved(tiny, settings, agents__verifier__checkpoint_version="1")
    assert loaded_states(earlier, settings)["verifier"].digest != states[0]["verifier"].digest


def test_loaded_agents_are_not_pretrained_and_may_lack_a_solo_head(tiny, home, settings):
    hyper_params = _resolved(tiny, settings, pretrain_agents=True)
    trainer = tiny.trainer(hyper_params, home=str(home))
    assert type(trainer).pretrained_agent_names(hyper_params) == ["prover"]
    assert trainer.pretrained_agent_names(trainer.hyper_params) == ["prover"]
    assert "solo_head" in {n.partition(".")[0] for n in trainer.initial_state().agents["verifier"]}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"agents__verifier__checkpoint_run_id": None},
            ParameterError,
            r"agents\.verifier\.checkpoint_run_id: got None, expected the id",
        ),
        (
            {"agents__verifier__checkpoint_run_id": "sauce"},
            RunNotFoundError,
            "no run 'sauce'",
        ),
        (
            {"agents__verifier__checkpoint_version": "7"},
            CheckPointNotFoundError,
            "no saved state '7': it has those after 1, 2 iterations",
        ),
        ({"d_representation": 8}, ParameterError, "d_representation: got 8, but agent 'verifier'"),
        ({"agents__verifier__is_random": True}, ParameterError, "is_random is True here"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_built(tiny, settings, changes, error, words):
    with pytest.raises(error, match=words):
        _resolved(tiny, settings, **changes)


def test_a_run_without_such_an_agent_is_said(tiny, settings):
    changes = {path.replace("verifier", "prover0"): value for path, value in LOADED.items()}
    debate = tiny.parameters(interaction_protocol="debate", **changes)
    with pytest.raises(ParameterError, match=r"has no agent 'prover0'\. Did you mean 'prover'"):
        with_loaded_agents(debate, settings)


def test_other_shapes_are_said_with_the_run_and_both_shapes(tiny, home, settings):
    hyper_params = _resolved(tiny, settings, nip_protocol__max_message_rounds=6)
    with pytest.raises(StateError, match=r"agent 'verifier' of run source after 2 iterations: "):
        tiny.trainer(hyper_params, home=str(home)).initial_state()


def test_a_trainer_that_loads_no_agents_refuses_them(tiny, monkeypatch):
    hyper_params = tiny.parameters(**LOADED)
    check_combination(hyper_params)
    traits = dataclasses.replace(VanillaPpoTrainer.traits, loads_agents=False)
    monkeypatch.setattr(VanillaPpoTrainer, "traits", traits)
    with pytest.raises(ParameterError, match=r"agents\.verifier\.load_checkpoint.*loads no agents"):
        check_combination(hyper_params)
