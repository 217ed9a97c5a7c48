"""Whole files of the earlier system read as what they mean; unsupported parameters are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import load_experiment
from ratchet.parameters import SECTIONS, HyperParameters
from ratchet.parameters.base import AGENT_MODELS
from ratchet.parameters.compatibility.converters import upgrade_parameters
from ratchet.parameters.compatibility.unsupported import UNSUPPORTED_PARAMETERS
from ratchet.plugins import load_module

earlier = load_module(Path(__file__).with_name("earlier_system.py"))

ALTERNATING = {
    "_type": "AlternatingPeriodicUpdateSchedule",
    "AlternatingPeriodicUpdateSchedule": {
        "period": 5,
        "first_agent_num_rounds": 2,
        "first_agent": False,
    },
}
TRACKED = {"wandb_version": 1, "_wandb": {"desc": None, "value": {"python_version": "3.11"}}}
FORMS = {
    "params.json": lambda data: json.dumps(data, indent=2),
    "params.yaml": yaml.safe_dump,
    "config.yaml": lambda data: yaml.safe_dump(
        {**TRACKED, **{name: {"desc": None, "value": value} for name, value in data.items()}}
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("scenario", "trainer"), earlier.COMBINATIONS)
def test_every_combination_loads_from_its_own_files(tmp_path, scenario, trainer, form):
    data = earlier.written(scenario, trainer)
    file = tmp_path / form
    file.write_text(FORMS[form](data))
    read = load_experiment(file).hyper_params
    assert read == HyperParameters.from_dict(data)
    renamed = {"dataset": f"hub:{data['dataset']}"} if scenario == "code_validation" else {}
    ours = HyperParameters(**{**_top(data), **renamed})
    expected = ours.to_dict()
    expected["code_validation"] |= {"difficulties": ["interview"], "apps_solution_number": 0}
    if scenario == "code_validation":
        theirs = {"model_name": "gpt-4o-mini-2024-07-18", "base_url": None}
        theirs["num_invalid_generation_retries"] = 20
        expected["agents"]["_default"].update(theirs)
    assert read.to_dict() == expected, "defaults equal Ratchet's, except these"


def _top(data):
    return {name: data[name] for name in ("scenario", "trainer", "dataset")}


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "trainer"), earlier.COMBINATIONS)
def test_every_value_that_is_not_its_default_arrives(scenario, trainer, caplog):
    """Each is changed separately: a parameter of Ratchet changes too, or a message names it."""
    data = earlier.written(scenario, trainer)
    before = HyperParameters.from_dict(data).to_dict()
    new = {bool: lambda v: not v, int: lambda v: v + 2, float: lambda v: v * 0.8 + 0.05}
    numbers = {
        path: new[type(value)](value)
        for path, value in _leaves(data)
        if type(value) in new and not path.startswith(_READ_BY_NOBODY)
    }
    assert len(numbers) > 80
    for path, value in numbers.items():
        caplog.clear()
        read = _read_or_named(earlier.changed(earlier.written(scenario, trainer), path, value))
        if read == before:
            assert scenario == "code_validation", path
            assert f"chat models do not read it: {path.split('.')[2]}" in caplog.text
            continue
        assert isinstance(read, dict) or path.rpartition(".")[2].removeprefix("apps_") in read


def _read_or_named(data):
    try:
        return HyperParameters.from_dict(data).to_dict()
    except ParameterError as error:
        return str(error)


_READ_BY_NOBODY = (
    "functionalize_modules",
    "base_run.rerun_tests_force",
    "agents._default.language_model_server_port",
    "agents._default.vllm_server_port",  # of a service that is not called
)


def _leaves(data, prefix=""):
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@pytest.mark.parametrize(
    "given",
    [
        {"agent_lr_factor": {"actor": 0.1, "critic": 1.0}},
        {"orthogonal_initialisation_gain": 0.5},
        {"ortho_init": 0.5},
        {"is_random": True},
    ],
)
def test_chat_agents_load_without_what_only_networks_read(caplog, given):
    data = earlier.written("code_validation", "pure_text_ei")
    before = HyperParameters.from_dict(data)
    data["agents"]["prover"] = {**earlier.AGENTS["code_validation"], **given}
    caplog.clear()
    read = HyperParameters.from_dict(data)
    assert read.agents["prover"] == before.agents["prover"]
    assert f"chat models do not read it: {next(iter(given))}" in caplog.text


def test_what_differs_from_its_defaults_keeps_its_meaning():
    data = earlier.written("code_validation", "pure_text_malt")
    agent = earlier.AGENTS["code_validation"]
    data["agents"] = {
        "_default": {**agent, "model_provider": "OpenRouter", "dpo_beta": 0.3},
        "verifier": {**agent, "update_schedule": ALTERNATING, "freeze_agent": True},
        "prover": {**agent, "model_provider": "SelfHosted", "vllm_server_port": 81},
        "agents_update_repr": "Custom(…)",
    }
    for path, value in {
        "message_regression.regression_method": "cnn",
        "message_regression.mlp_hidden_size": 32,
        "message_regression.agents": ["prover"],
        "code_validation.apps_difficulty": "competition",
        "code_validation.apps_exclude_flagged": False,
        "dataset_options.max_test_size": 7,
        "rl.clip_value": None,
        "rl.body_lr_factor": None,
        "spg.stackelberg_sequence": [["verifier"], ["prover"]],
    }.items():
        earlier.changed(data, path, value)
    read = HyperParameters.from_dict(data)
    default, verifier, prover = (read.agents[n] for n in ("_default", "verifier", "prover"))
    assert default.base_url == "https://openrouter.ai/api/v1"
    assert default.api_key_name == "OPENROUTER_API_KEY"
    assert default.fine_tuning.beta == 0.3
    assert verifier.fine_tuning.beta is None, "what it leaves open is not _default's"
    assert (verifier.base_url, verifier.api_key_name) == (None, None)
    learns = [verifier.update_schedule.is_on(i, "verifier") for i in range(5)]
    assert learns == [False, False, True, True, True]
    assert verifier.freeze_agent
    assert (prover.base_url, prover.api_key_name) == ("http://localhost:81/v1", None)
    assert read.message_regression.method == "cnn"
    assert read.message_regression.hidden_size == 32
    assert read.message_regression.agents == ("prover",)
    assert read.code_validation.difficulties == ("competition",)
    assert not read.code_validation.exclude_flagged
    assert read.code_validation.max_test_size == 7
    assert read.rl.clip_value is False
    assert read.spg.stackelberg_sequence == (("verifier",), ("prover",))


@pytest.mark.parametrize(
    ("there", "rounds"),
    [("none", []), ("all", [0, 1, 2]), ("first", [0]), ("all_but_first", [1, 2])],
)
def test_a_supervisor_speaks_in_the_rounds_in_which_it_did(there, rounds):
    data = earlier.written("code_validation", "pure_text_ei")
    earlier.changed(data, "agents._default.use_supervisor_message", there)
    agent = HyperParameters.from_dict(data).agents["verifier"]
    assert [r for r in range(3) if agent.hears_supervisor(r, hears_others=True)] == rounds


def test_agents_that_are_random_stay_so():
    data = earlier.written("graph_isomorphism", "vanilla_ppo")
    data["agents"]["prover"] = earlier.AGENTS["random"]
    agents = HyperParameters.from_dict(data).agents
    assert agents["prover"].is_random
    assert not agents["verifier"].is_random


def test_all_that_has_no_counterpart_is_named_at_once_with_what_to_do():
    data = earlier.written("code_validation", "pure_text_ei")
    asked = {
        "test_dataset_split": "validation",
        "protocol_common.prover_invalid_response_penalty": -0.5,
        "protocol_common.verifier_neither_accept_nor_reject_reward": 0.1,
        "code_validation.system_prompt_version": "v1",
        "agents._default.normalize_message_history": True,
        "agents._default.model_provider": "Elsewhere",
    }
    for path, value in asked.items():
        earlier.changed(data, path, value)
    with pytest.raises(ParameterError) as caught:
        HyperParameters.from_dict(data)
    lines = str(caught.value).splitlines()
    assert {_star(path) for path in asked} | {"dataset_options.max_test_size"} == set(
        UNSUPPORTED_PARAMETERS
    ), "the size of the test set has one in programs' data"
    for path, value in asked.items():
        (line,) = (line for line in lines if line.startswith(f"{path}: unknown parameter"))
        assert repr(value) in line
        assert UNSUPPORTED_PARAMETERS[_star(path)].advice in line


def _star(path):
    return path.replace("agents._default.", "agents.*.")


def test_what_is_said_to_have_no_counterpart_has_none():
    """Remove a parameter from the list when it gets a counterpart."""
    HyperParameters(scenario="graph_isomorphism", trainer="vanilla_ppo", dataset="er1000")
    for path in UNSUPPORTED_PARAMETERS:
        section, _, name = path.rpartition(".")
        models = (
            AGENT_MODELS.values()
            if section == "agents.*"
            else [SECTIONS[section].model if section else HyperParameters]
        )
        assert not any(name in model.model_fields for model in models), path


@pytest.mark.parametrize(("scenario", "trainer"), earlier.COMBINATIONS)
def test_what_was_read_is_written_in_our_words(scenario, trainer):
    read = HyperParameters.from_dict(earlier.written(scenario, trainer))
    saved = read.to_saved_dict()
    assert upgrade_parameters(saved)[1] == []
    assert HyperParameters.from_dict(saved) == read


@pytest.mark.parametrize(
    "schedule",
    [
        {**ALTERNATING["AlternatingPeriodicUpdateSchedule"], "_type": ALTERNATING["_type"]},
        {"_type": "AlternatingPeriodicUpdateSchedule"},
        {"_type": ALTERNATING["_type"], ALTERNATING["_type"]: {"period": 5}},
        {"_type": ALTERNATING["_type"], ALTERNATING["_type"]: 5},
        {**ALTERNATING, "_type": "ContiguousPeriodicUpdateSchedule"},
        {"_type": "ContiguousPeriodicUpdateSchedule", "period": 5, "start": 0, "stop": 2},
        {"_type": "NoSuchSchedule", "period": 5},
        {"_type": "SpgParameters"},
        {"_type": ["ConstantUpdateSchedule"]},
    ],
)
def test_a_schedule_that_is_none_of_its_own_is_told_what_was_expected(schedule):
    data = earlier.written("graph_isomorphism", "vanilla_ppo")
    earlier.changed(data, "rl.lr", -1)
    data["agents"]["prover"] = {"update_schedule": schedule}
    with pytest.raises(ParameterError) as caught:
        HyperParameters.from_dict(data)
    rate, line = sorted(str(caught.value).splitlines(), reverse=True)
    assert rate.startswith("rl.lr: got -1")
    assert line.startswith("agents.prover.update_schedule: got {")
    assert f"'_type': {schedule['_type']!r}" in line
    assert "AlternatingPeriodicUpdateSchedule: {period, first_agent_num_rounds" in line


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        ("rl._type", "SpgParameters", "RlTrainerParameters"),
        ("rl.body_lr_factor._type", "RlTrainerParameters", "LrFactors"),
        ("protocol_common._type", "LrFactors", "CommonProtocolParameters"),
        ("agents._default._type", "NoSuchParameters", "GraphIsomorphismAgentParameters"),
        ("agents._default._type", "CodeValidationAgentParameters", "GraphIsomorphismAgentParam"),
        ("_type", "SpgParameters", "HyperParameters"),
        ("_type", 3, "HyperParameters"),
    ],
)
def test_a_class_that_contradicts_its_place_is_refused(path, name, expected):
    data = earlier.changed(earlier.written("graph_isomorphism", "vanilla_ppo"), path, name)
    with pytest.raises(ParameterError) as caught:
        HyperParameters.from_dict(data)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path}: unknown parameter (value {name!r})")
    assert expected in line


@pytest.mark.parametrize("ending", ["Parameters", "Params"])
def test_classes_of_its_places_are_taken_in_all_its_versions(ending):
    read = HyperParameters.from_dict(
        {
            **_top(earlier.written("graph_isomorphism", "vanilla_ppo")),
            "_type": f"Hyper{ending}" if ending == "Params" else ending,
            "pvg_protocol": {"_type": f"PvgProtocol{ending}", "max_message_rounds": 4},
            "agents": {"prover": {"_type": f"RandomAgent{ending}"}},
        }
    )
    assert read.nip_protocol.max_message_rounds == 4
    assert read.agents["prover"].is_random, "no other parameter sets it"


def test_classes_of_an_arm_are_looked_at_too(tmp_path):
    data = _top(earlier.written("graph_isomorphism", "vanilla_ppo"))
    file = tmp_path / "arms.yaml"
    arms = {"good": {"spg": {"_type": "SpgParameters"}}, "bad": {"rl": {"_type": "SpgParameters"}}}
    file.write_text(yaml.safe_dump({**data, "arms": arms}))
    with pytest.raises(ParameterError, match=r"arms\.bad\.rl\._type: .*RlTrainerParam") as caught:
        load_experiment(file)
    assert "arms.good" not in str(caught.value)
