"""Parameters of earlier versions are upgraded, and each change is reported."""

from __future__ import annotations

import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import load_experiment
from ratchet.parameters import HyperParameters
from ratchet.parameters.compatibility import converters
from ratchet.parameters.compatibility.converters import (
    PARAMETERS_VERSION,
    VERSION_KEY,
    register_converter,
    upgrade_parameters,
)

TOP = {"scenario": "graph_isomorphism", "trainer": "vanilla_ppo", "dataset": "er1000"}
OLD = {
    **TOP,
    "_package_version": "0.1",
    "_package_name": "earlier",
    "interaction_protocol": "pvg",
    "functionalize_modules": False,
    "test_dataset_split": "test",
    "vanilla_ppo": {},
    "ppo": None,
    "agents": {
        "_default": {"d_gnn": 8, "ortho_init": 0.5, "normalize_message_history": False},
        "verifier": {
            "agent_lr_factor": 0.1,
            "gnn_lr_factor": None,
            "checkpoint_entity": "us",
            "update_schedule": {
                "_type": "AlternatingPeriodicUpdateSchedule",
                "AlternatingPeriodicUpdateSchedule": {
                    "period": 5,
                    "first_agent_num_rounds": 2,
                    "first_agent": False,
                },
            },
        },
        "prover": {"ortho_init": False, "update_schedule": {"_type": "ConstantUpdateSchedule"}},
    },
    "pvg_protocol": {"max_message_rounds": 6},
    "protocol_common": {"prover_invalid_response_penalty": None, "shared_reward": True},
    "rl": {"lr": 0.01, "body_lr_factor": None},
    "text_rl": {"test_every_iteration": True},
    "base_run": {"base_run_type": "none", "wandb_project": "p"},
}


def test_a_file_of_the_earlier_system_reads_as_what_it_meant():
    hyper_params = HyperParameters.from_dict(OLD)
    assert hyper_params.interaction_protocol == "nip"
    assert hyper_params.nip_protocol.max_message_rounds == 6
    assert hyper_params.protocol_common.shared_reward
    assert hyper_params.rl.lr == 0.01
    assert hyper_params.text_rl.test_scheme == "all"
    verifier, prover = hyper_params.agents["verifier"], hyper_params.agents["prover"]
    assert verifier.agent_lr_factor.actor == verifier.agent_lr_factor.critic == 0.1
    assert verifier.orthogonal_initialisation_gain == 0.5
    assert not prover.use_orthogonal_initialisation
    learns = [verifier.update_schedule.is_on(i, "verifier") for i in range(5)]
    assert learns == [False, False, True, True, True], "the second agent's part of each period"
    assert prover.update_schedule.kind == "constant"


def test_every_change_is_said_once():
    converted, changes = upgrade_parameters(OLD)
    (removed,) = (change for change in changes if change.startswith("removed, no longer read"))
    assert "_package_version" in removed
    assert "base_run.wandb_project" in removed
    assert "interaction_protocol: 'pvg' is called 'nip' now" in changes
    assert "pvg_protocol: is called nip_protocol now" in changes
    assert "ppo: null left out, it has its defaults" in changes
    assert any(change.startswith("agents.*.ortho_init: 0.5 is written") for change in changes)
    assert len(changes) == len(set(changes))
    assert upgrade_parameters(converted) == (converted, [])


def test_the_data_given_stay_as_they_are():
    before = repr(OLD)
    upgrade_parameters(OLD)
    assert repr(OLD) == before


def test_names_that_moved_in_other_sections():
    converted, _ = upgrade_parameters({"spg": {"sos_a_param": 0.4, "sos_b_param": 0.2}})
    assert converted == {"spg": {"sos_scaling_factor": 0.4, "sos_threshold_factor": 0.2}}
    agents = {"a": {"dpo_beta": 0.3, "model_provider": "SelfHosted", "vllm_server_port": 81}}
    converted, changes = upgrade_parameters({"agents": agents})
    service = {"base_url": "http://localhost:81/v1", "api_key_name": None}
    assert converted == {"agents": {"a": {"fine_tuning": {"beta": 0.3}, **service}}}
    assert len(changes) == 2


def test_what_asked_for_something_that_is_not_there_is_refused_not_dropped():
    old = {**TOP, "protocol_common": {"prover_invalid_response_penalty": -1.0}}
    with pytest.raises(
        ParameterError, match=r"protocol_common\.prover_invalid_response_penalty: unknown"
    ):
        HyperParameters.from_dict(old)


def test_scales_of_decisions_and_custom_prompts_are_read():
    text = {"scenario": "code_validation", "trainer": "pure_text_ei", "dataset": "generated"}
    common = {"verifier_decision_spectrum": "out_of_10"}
    likert = {"verifier_decision_scale": "likert_scale"}
    with_middle = HyperParameters.from_dict({**text, "protocol_common": likert})
    assert with_middle.protocol_common.verifier_decision_scale == "likert_scale_5"
    agents = {"_default": {"system_prompt_template_path": "p.txt", "repetition_penalty": None}}
    read = HyperParameters.from_dict({**text, "protocol_common": common, "agents": agents})
    assert read.protocol_common.verifier_decision_scale == "out_of_10"
    assert read.agents["_default"].system_prompt_template_path == "p.txt"


def test_old_and_new_name_together_are_refused():
    both = {"pvg_protocol": {"max_message_rounds": 6}, "nip_protocol": {"max_message_rounds": 4}}
    with pytest.raises(ParameterError, match="pvg_protocol: is called nip_protocol now, and both"):
        upgrade_parameters(both)


@pytest.mark.parametrize("version", [PARAMETERS_VERSION + 1, -1, "1", True, None])
def test_a_version_that_is_none_or_newer_is_refused(version):
    with pytest.raises(ParameterError, match=VERSION_KEY):
        HyperParameters.from_dict({**TOP, VERSION_KEY: version})


def test_what_is_saved_says_its_version_and_is_read_without_a_word(caplog):
    hyper_params = HyperParameters(**TOP)
    saved = hyper_params.to_saved_dict()
    assert saved == {VERSION_KEY: PARAMETERS_VERSION, **hyper_params.to_dict()}
    with caplog.at_level(logging.WARNING):
        assert HyperParameters.from_dict(saved) == hyper_params
    assert not caplog.records


def test_an_experiment_file_with_old_names_runs_and_says_so(tmp_path, caplog):
    file = tmp_path / "old.yaml"
    file.write_text(
        "{scenario: graph_isomorphism, trainer: vanilla_ppo, dataset: er1000,"
        " pvg_protocol: {max_message_rounds: 6},"
        " arms: {short: {pvg_protocol.max_message_rounds: 2}}}"
    )
    with caplog.at_level(logging.WARNING):
        experiment = load_experiment(file, ["pvg_protocol.min_message_rounds=2"])
    assert experiment.hyper_params.nip_protocol.max_message_rounds == 6
    assert experiment.hyper_params.nip_protocol.min_message_rounds == 2
    assert experiment.arms["short"].nip_protocol.max_message_rounds == 2
    assert f"{file}: parameters of an earlier version: pvg_protocol: is called" in caplog.text


def test_a_chain_is_gone_through_from_the_version_of_the_data(monkeypatch):
    monkeypatch.setattr(converters, "_CONVERTERS", dict(converters._CONVERTERS))

    @register_converter(from_version=1)
    def second(data):
        data["steps"] = [*data.get("steps", []), 2]
        return ["two"]

    @register_converter(from_version=2)
    def third(data):
        data["steps"] = [*data.get("steps", []), 3]
        return ["three"]

    assert upgrade_parameters({VERSION_KEY: 1}, 3) == ({"steps": [2, 3]}, ["two", "three"])
    assert upgrade_parameters({VERSION_KEY: 2}, 3) == ({"steps": [3]}, ["three"])
    assert upgrade_parameters({VERSION_KEY: 0}, 3)[1] == ["two", "three"]
    with pytest.raises(ParameterError, match="version 1 are converted by"):

        @register_converter(from_version=1)
        def other(data):
            return []


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("abc", max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=2), inner),
    max_leaves=8,
)
OLD_NAMES = st.sampled_from(["pvg_protocol", "functionalize_modules", "vanilla_ppo", "agents", "x"])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(OLD_NAMES, plain, max_size=4))
def test_upgrading_twice_is_upgrading_once(data):
    converted, _ = upgrade_parameters(data)
    assert upgrade_parameters(converted) == (converted, [])
