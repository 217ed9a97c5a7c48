"""An agent's parameters are merged deeply over those of ``agents._default``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.runs.resolve import read_arms
from ratchet import HyperParameters
from ratchet.experiment_files.loading import load_experiment
from ratchet.parameters.key_inputs import agents_read
from ratchet.parameters.purposes import Purpose

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_a_shipped_experiment_changed_for_one_agent_keeps_the_rest_of_the_section() -> None:
    experiment = load_experiment(
        EXPERIMENTS / "reverse_grpo.yaml",
        ["agents.agent.warm_up.num_steps=50", "agents.agent.small_model.layers=3"],
    )
    agent = experiment.hyper_params.agents["agent"]
    assert agent.warm_up.num_steps == 50
    assert (agent.warm_up.until_loss, agent.warm_up.lr) == (0.75, 0.002)
    assert (agent.small_model.layers, agent.small_model.context_length) == (3, 32)


@pytest.fixture
def chat() -> dict[str, object]:
    return {
        "scenario": "code_validation",
        "trainer": "pure_text_ei",
        "dataset": "generated",
        "agents": {
            "_default": {
                "fine_tuning": {"n_epochs": 3, "lora_rank": 8},
                "chat_template_kwargs": {"enable_thinking": False},
            },
            "prover": {"fine_tuning": {"seed": 7}},
        },
    }


def test_sections_of_a_named_agent_keep_what_the_default_sets(chat: dict[str, object]) -> None:
    fine_tuning = HyperParameters.from_dict(chat).agents["prover"].fine_tuning
    assert (fine_tuning.n_epochs, fine_tuning.lora_rank, fine_tuning.seed) == (3, 8, 7)


def test_complete_parameters_take_nothing_from_the_default(chat: dict[str, object]) -> None:
    params = HyperParameters.from_dict(chat)
    saved = params.to_dict()
    saved["agents"]["prover"]["chat_template_kwargs"] = {}
    again = HyperParameters.from_dict(saved)
    assert again.agents["prover"].chat_template_kwargs == {}
    assert HyperParameters.from_dict(again.to_dict()) == again


def test_a_default_given_as_an_object_is_merged_like_a_mapping(chat: dict[str, object]) -> None:
    default = HyperParameters.from_dict(chat).agents["_default"]
    chat["agents"] = {"_default": default, "prover": {"fine_tuning": {"seed": 7}}}
    fine_tuning = HyperParameters.from_dict(chat).agents["prover"].fine_tuning
    assert (fine_tuning.n_epochs, fine_tuning.seed) == (3, 7)


LAYERS, FACTOR = "agents._default.num_gnn_layers", "agents._default.agent_lr_factor.actor"


@pytest.mark.parametrize(
    "changes",
    [
        {FACTOR: 3.0},
        {LAYERS: 4},
        {FACTOR: 3.0, "agents.verifier.agent_lr_factor.actor": 2.0},
        {
            "agents._default.update_schedule": {
                "kind": "contiguous_periodic",
                "period": 2,
                "start": 0,
                "stop": 1,
            }
        },
    ],
)
def test_agents_follow_changes_of_the_default_as_in_a_file(changes: dict[str, object]) -> None:
    """A member of a sweep, or an arm given as changes, is the run with the same overrides."""
    file = EXPERIMENTS / "graph_isomorphism_help.yaml"
    overrides = [
        f"{path}={json.dumps(value)}" if isinstance(value, dict) else f"{path}={value}"
        for path, value in changes.items()
    ]
    given = load_experiment(file, overrides).hyper_params
    plain = load_experiment(file).hyper_params
    assert plain.replace(changes) == given
    assert read_arms(plain, {"changed": changes})["changed"] == given
    assert given.agents["verifier"].num_gnn_layers == 2, "the file gives it to this agent"


def test_a_section_of_another_kind_replaces_the_default_s() -> None:
    periodic = {"kind": "contiguous_periodic", "period": 4, "start": 0, "stop": 2}
    params = HyperParameters.from_dict(
        {
            "scenario": "graph_isomorphism",
            "trainer": "vanilla_ppo",
            "dataset": "generated",
            "agents": {"_default": {"update_schedule": periodic}, "prover": {}},
        }
    )
    assert params.agents["prover"].update_schedule.kind == "contiguous_periodic"
    changed = params.to_dict()
    changed["agents"]["prover"] = {"update_schedule": {"kind": "constant"}}
    schedule = HyperParameters.from_dict(changed).agents["prover"].update_schedule
    assert schedule.kind == "constant"


def test_stages_read_only_agents_that_differ_from_the_default() -> None:
    data = {"scenario": "graph_isomorphism", "trainer": "vanilla_ppo", "dataset": "er1000"}
    params = HyperParameters(**data, agents={"prover": {}, "verifier": {"num_gnn_layers": 9}})
    assert list(agents_read(params)) == ["_default", "verifier"]
    assert list(agents_read(params, {Purpose.LEARNING})) == ["_default"]
