"""Every registered trainer × scenario × protocol runs, or is refused before anything is built."""

from __future__ import annotations

import itertools
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import ParameterError
from ratchet.language_models.endpoints import EMBEDDED_URL_VARIABLE
from ratchet.language_models.local.small_models import SmallModelShape, make_small_model
from ratchet.parameters.language import LANGUAGE_TRAINERS
from ratchet.protocols import registry as protocols
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios import registry as scenarios
from ratchet.scenarios.registry import build_scenario
from tests.service.conftest import FakeEngine, RunningService
from trainers import registry as trainers
from trainers.compatibility import check_combination
from trainers.registry import trainer_class
from trainers.staged import runs_in_stages

# Built-in names: other tests of the same process register their own.
SCENARIOS = sorted(scenarios.SCENARIOS.built_in)
TRAINERS = sorted(trainers.TRAINERS.built_in)
PROTOCOLS = sorted(protocols.PROTOCOLS.built_in)

LONG = {f"{name}_protocol": {"max_message_rounds": 4} for name in ("nip", "debate", "mnip")}
RL = {
    "frames_per_batch": 32,
    "minibatch_size": 12,
    "num_epochs": 1,
    "num_iterations": 2,
    "num_normalization_steps": 32,
    "num_test_iterations": 1,
}
TEXT_RL = {"num_iterations": 2, "frames_per_batch": None, "rollouts_per_iteration": 4}
GAME = {"num_test_episodes": 2, "num_train_seeds": 4, "num_envs": 2, "max_episode_steps": 10}
TINY = {
    "graph_isomorphism": {
        "dataset": "er40",
        "agents": {"_default": {"num_gnn_layers": 1, "num_transformer_layers": 1, "d_gnn": 4}},
    },
    "binary_erasure_channel": {
        "dataset": "generated",
        "binary_erasure_channel": {"num_datapoints": 40},
    },
    "image_classification": {
        "dataset": "digits",
        "dataset_options": {"max_train_size": 40},
        "image_classification": {"initial_num_channels": 2},
        "agents": {"_default": {"num_blocks_per_group": 1}},
    },
    "code_validation": {
        "dataset": "generated",
        "code_validation": {"num_train": 6, "num_test": 4, "levels": [0]},
        "text_rl": {"save_transcripts": False},
        "agents": {"_default": {"use_dummy_api": True}},
        "rl": TEXT_RL,
    },
    "gymnasium": {"dataset": "CartPole-v1", "gymnasium": GAME},
    "language_task": {
        "dataset": "reverse",
        "language_task": {"num_train": 4, "num_test": 2},
        "language": {"group_size": 2, "tasks_per_step": 2},
        "agents": {
            "_default": {
                "small_model": {"layers": 1, "d_model": 8, "heads": 2, "context_length": 32},
                "max_tokens": 4,
            }
        },
    },
}
"""The smallest experiment of each scenario; a new scenario needs one."""
LIBRARY = {
    "torchrl.batches_per_iteration": 1,
    "collector.frames_per_batch": 24,
    "replay_buffer.batch_size": 8,
    "trainer.total_frames": 192,
}
ON_POLICY = ("torchrl_a2c", "torchrl_ppo", "torchrl_reinforce")
ENVIRONMENTS = dict.fromkeys(
    (
        *("torchrl_cql", "torchrl_ddpg", "torchrl_iql", "torchrl_sac", "torchrl_td3"),
        "torchrl_offline_to_online",
    ),
    "Pendulum-v1",
)
"""Of trainers that can't play CartPole, whose actions are discrete."""

ALL_WITH_ZERO_KNOWLEDGE = ("vanilla_ppo", "pure_text_ei", "torchrl_ppo")


def make(scenario, trainer, protocol, *, zero_knowledge=False):
    tiny = TINY[scenario]
    library = trainer.startswith("torchrl_") and scenario == "gymnasium"
    data = {
        "solo_agent": {"num_epochs": 2, "batch_size": 8},
        "rl": RL,
        "d_representation": 4,
        **LONG,
        **tiny,
        "scenario": scenario,
        "trainer": trainer,
        "interaction_protocol": protocol,
        "protocol_common": {"zero_knowledge": zero_knowledge},
    }
    if trainer == "on_policy_distillation" and scenario == "language_task":
        data["on_policy_distillation"] = {"teacher": teacher()}
    if trainer == "remote_grpo" and scenario == "language_task":
        data["language"] = {**data["language"], "train_service": {"backend": "ratchet"}}
    if not library:
        return HyperParameters(**data)
    data["dataset"] = ENVIRONMENTS.get(trainer, tiny["dataset"])
    policy = (
        {"trainer.num_epochs": 1}
        if trainer in ON_POLICY
        else {"collector.init_random_frames": 24, "trainer.optim_steps_per_batch": 2}
    )
    if trainer == "torchrl_offline_to_online":
        policy["replay_buffer.offline_dataset"] = offline_frames()
    return HyperParameters(**data).replace({**LIBRARY, **policy})


@cache
def teacher():
    """Make a model that knows the pupils' characters."""
    folder = Path(tempfile.mkdtemp()) / "teacher"
    shape = SmallModelShape(d_model=8, layers=1, heads=2, context_length=32)
    make_small_model(folder, alphabet="=abcdefgh", shape=shape)
    return str(folder)


@cache
def offline_frames():
    """Write initial frames, such as Pendulum's."""
    path = Path(tempfile.mkdtemp()) / "frames.safetensors"
    sizes = {"observation": 3, "action": 1, "next/observation": 3, "next/reward": 1}
    flags = {f"next/{name}": torch.zeros(8, 1, dtype=torch.bool) for name in ("done", "terminated")}
    save_file({**{name: torch.zeros(8, size) for name, size in sizes.items()}, **flags}, path)
    return str(path)


def reason_to_refuse(hyper_params):
    try:
        check_combination(hyper_params)
    except ParameterError as error:
        return str(error)
    return None


def grid():
    """Return everything without zero knowledge; with it, all trainers at nip and three at all."""
    for point in itertools.product(SCENARIOS, TRAINERS, PROTOCOLS, (False, True)):
        _, trainer, protocol, zero_knowledge = point
        if not zero_knowledge or protocol == "nip" or trainer in ALL_WITH_ZERO_KNOWLEDGE:
            yield point


@pytest.fixture(scope="module")
def reasons():
    """Why each combination is refused; None for those that are not."""
    return {
        (scenario, trainer, protocol, zero): reason_to_refuse(
            make(scenario, trainer, protocol, zero_knowledge=zero)
        )
        for scenario, trainer, protocol, zero in grid()
    }


@pytest.fixture(scope="module")
def datasets():
    """The data of each scenario, made once; an environment's follow from its parameters."""
    made = {}

    def find(hyper_params):
        name = hyper_params.scenario
        if name == "gymnasium":
            return None
        if name not in made:
            made[name] = build_scenario(name).build_datasets(hyper_params)
        return made[name]

    return find


def test_every_scenario_has_a_tiny_experiment():
    assert set(TINY) == set(SCENARIOS)


def test_a_refusal_names_what_does_not_go_together(reasons):
    """Two of the values, or the value and the option that it does not go with."""
    for (*values, zero), reason in reasons.items():
        if reason is not None:
            named = [value for value in (*values, "zero_knowledge") if value in reason]
            assert len(named) >= 2, (values, zero, reason)


def test_each_family_plays_what_it_can(reasons):
    """The complete table, rule by rule: too strict and too lax rules show here."""
    speaking = set(PROTOCOLS) - {"environment"}
    networks = {"graph_isomorphism", "binary_erasure_channel", "image_classification"}
    expected = set()
    for scenario, trainer, protocol, zero in grid():
        is_text, is_library = trainer.startswith("pure_text"), trainer.startswith("torchrl_")
        if scenario == "code_validation":
            fits = is_text and protocol in speaking - {"multi_channel_test"} and not zero
        elif scenario in networks:
            alone = (trainer, protocol, zero) == ("spg", "solo_verifier", False)
            is_other = is_text or is_library or trainer in LANGUAGE_TRAINERS
            fits = not (is_other or alone) and protocol in speaking
        elif scenario == "language_task":
            fits = trainer in LANGUAGE_TRAINERS and protocol == "environment" and not zero
        else:
            is_text = is_text or trainer in LANGUAGE_TRAINERS
            learns = not is_text and trainer not in ("solo_agent", "spg")
            fits = learns and protocol == "environment" and not zero
        if fits:
            expected.add((scenario, trainer, protocol, zero))
    assert {combination for combination, reason in reasons.items() if reason is None} == expected


@pytest.mark.in_turn(7)
@pytest.mark.slow
@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_is_not_refused_plays_two_iterations_and_a_test(
    trainer, reasons, datasets, tmp_path, request
):
    if trainer == "remote_grpo":
        request.getfixturevalue("training_service")
    settings = ExperimentSettings(progress="none", home=str(tmp_path), poll_seconds=0.01)
    played = 0
    for (scenario, learner, protocol, zero), reason in reasons.items():
        if learner != trainer or reason is not None:
            continue
        hyper_params = make(scenario, trainer, protocol, zero_knowledge=zero)
        try:
            play(hyper_params, settings, datasets(hyper_params))
        except Exception as error:
            error.add_note(f"{scenario} × {protocol}, zero knowledge {zero}")
            raise
        played += 1
    assert played


@pytest.fixture
def training_service(tmp_path, monkeypatch):
    """A service where models are trained, as runs find theirs."""
    with RunningService(tmp_path / "service", FakeEngine(0.0)).serving() as service:
        monkeypatch.setenv(EMBEDDED_URL_VARIABLE, service.url)
        yield


def play(hyper_params, settings, datasets):
    found = trainer_class(hyper_params)
    instance = build_scenario_instance(
        hyper_params, settings, datasets=datasets, trainer_type=found.trainer_type
    )
    trainer = found(hyper_params, instance, settings)
    if runs_in_stages(found):
        trainer.initial_state()
        assert len(trainer.run_iterations(0, 2)) == 2
        assert trainer.run_test("test").table["datapoint_id"]
    else:
        trainer.train()
        assert trainer.state.iteration == 1  # the number of the last one


def test_an_agent_that_learns_alone_is_refused_where_there_are_no_labels():
    params = make("gymnasium", "vanilla_ppo", "environment").replace({"pretrain_agents": True})
    with pytest.raises(ParameterError, match=r"pretrain_agents: got True .*'gymnasium'"):
        check_combination(params)


@pytest.mark.parametrize(
    ("scenario", "trainer", "fitting"),
    [
        ("language_task", "vanilla_ppo", "grpo"),
        ("language_task", "torchrl_ppo", "grpo"),
        ("language_task", "pure_text_ei", "grpo"),
        ("gymnasium", "grpo", "vanilla_ppo"),
        ("graph_isomorphism", "grpo", "vanilla_ppo"),
        ("code_validation", "grpo", "pure_text_ei"),
    ],
)
def test_models_that_learn_from_tokens_and_their_trainers_go_together_only(
    scenario, trainer, fitting
):
    protocol = "environment" if scenario in ("language_task", "gymnasium") else "nip"
    with pytest.raises(ParameterError, match="trained on their tokens") as caught:
        check_combination(make(scenario, trainer, protocol))
    assert all(word in str(caught.value) for word in (scenario, trainer, f"e.g. {fitting}"))
    check_combination(make("language_task", "grpo", "environment"))


@pytest.mark.parametrize(
    "given",
    [{"is_random": True}, {"use_manual_architecture": True}, {"body_lr_factor": {"actor": 2}}],
)
def test_a_language_model_refuses_what_only_networks_read(given):
    data = {**TINY["language_task"], "scenario": "language_task", "trainer": "grpo"}
    with pytest.raises(ParameterError, match="learns from its tokens doesn't read it"):
        HyperParameters(**{**data, "agents": {"agent": given}})
