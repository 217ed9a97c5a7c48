"""Plans contain an upper bound on sampled tokens that language models never exceed."""

from __future__ import annotations

import json
import string
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from flows.planning import space
from flows.planning.estimates import TokenUpperBound
from flows.planning.plan import plan_experiment
from flows.planning.space import estimate_disk
from flows.runs.resolve import resolve
from flows.runs.without_prefect import run_without_prefect
from ratchet import ExperimentSettings
from ratchet.language_models.local.small_models import SmallModelShape, make_small_model
from tests.trainers.language.test_language_trainer import build, parameters

MOST = 32  # the model's context
WEIGHTS = 107 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
ADAPTED = 16 * 2 * (4 * (64 + 64) + 3 * (64 + 128))


def planned(tmp_path, hyper_params, **settings):
    chosen = ExperimentSettings(home=str(tmp_path), runs=str(tmp_path / "runs"), **settings)
    stages = plan_experiment(hyper_params, chosen)
    return [(stage.stage, stage.tokens) for stage in stages if stage.tokens is not None]


def most(answers, replies=5, together=MOST):
    return TokenUpperBound(answers, answers * replies, together and answers * together)


def test_the_bound_of_each_stage(tmp_path):
    given = parameters(language={"samples_per_test": 2})
    assert planned(tmp_path, given) == [("train", most(4 * 12)), ("test", most(8 * 2))]
    assert planned(tmp_path, given, iterations_per_task=1) == [
        *[("rollouts", most(12))] * 4,
        ("test", most(16)),
    ]
    searching = {"language_task.num_validation": 5, "validation.replaces_test": True}
    assert planned(tmp_path, given.replace(searching))[-1] == ("test", most(5 * 2))
    behind = given.replace({"language.mode": "one_step_behind"})
    assert planned(tmp_path, behind, iterations_per_task=2)[:2] == [
        ("train", most(36)),
        ("train", most(24)),
    ]


def test_the_bound_with_resampling_retries_and_several_turns(tmp_path):
    again = parameters(
        grpo={"variant": "dapo", "max_resamples": 2},
        language={"failures": {"policy": "retry", "retries": 1}},
    )
    assert planned(tmp_path, again)[0] == ("train", most(4 * 12 * 3 * 2))
    turns = parameters(
        language_task={"environment": "python_tool", "max_turns": 3},
        language={"max_sequence_length": 14},
    )
    assert planned(tmp_path, turns)[0] == ("train", most(48, 14, 14))


def test_the_bound_of_an_agent_with_its_own_parameters(tmp_path):
    own = {"agents": {"agent": {"max_tokens": 3, "small_model": {"context_length": 40}}}}
    named = parameters(**own)
    assert named.agents["_default"].max_tokens != 3
    assert planned(tmp_path, named) == [("train", most(48, 3, 40)), ("test", most(8, 3, 40))]


@pytest.mark.parametrize(
    "changes",
    [
        {"language": {"mode": "synchronous"}},
        {"language": {"mode": "one_step_behind"}},
        {"grpo": {"redraws": {"agent": 2}}},
    ],
)
def test_sampled_tokens_are_within_the_bound(tmp_path, changes):
    given = parameters(**changes)
    trainer = build(given)
    trainer.initial_state()
    played = []
    inside = trainer.play_rollouts

    def noted(iteration):
        found = inside(iteration)
        played.extend(found.trajectories)
        return found

    trainer.play_rollouts = noted
    trainer.run_iterations(0, 4)
    ((_, tokens), _) = planned(tmp_path, given)
    assert tokens.answers == len(played)
    assert sum(one.num_written for one in played) <= tokens.written
    assert sum(map(len, played)) <= tokens.together


@pytest.fixture
def model(tmp_path):
    shape = SmallModelShape(context_length=MOST)
    make_small_model(tmp_path / "model", alphabet=string.printable, shape=shape)
    return parameters(agents={"_default": {"model": "model", "max_tokens": 5}})


@pytest.mark.parametrize(
    ("agent", "size"),
    [
        ({"precision": "float32"}, 12 * WEIGHTS),
        pytest.param({"precision": "bfloat16"}, 14 * WEIGHTS, marks=pytest.mark.slow),
        pytest.param(
            {"precision": "bfloat16", "lora": {"rank": 16}}, 12 * ADAPTED, marks=pytest.mark.slow
        ),
    ],
)
def test_the_disk_space_of_states_is_estimated(tmp_path, model, agent, size):
    params = model.replace({f"agents._default.{name}": each for name, each in agent.items()})
    settings = ExperimentSettings(
        **{name: str(tmp_path / name) for name in ("home", "runs")},
        base_dir=str(tmp_path),
        iterations_per_task=1,
        tracking=False,
    )
    estimated = estimate_disk(resolve(params, settings))
    assert (estimated.num_states, estimated.state_bytes, estimated.required) == (4, size, 4 * size)
    fewer = settings.model_copy(update={"state_retention": "checkpoints"})
    few = estimate_disk(resolve(params, fewer))
    assert (few.num_states, few.required) == (2, 3 * size), "one more while it is written"
    run_without_prefect(params.replace({"rl.num_iterations": 2}), settings)
    known = estimate_disk(resolve(params, settings))
    assert known.num_states == 2, "the others are stored"
    assert known.state_bytes == pytest.approx(size, rel=0.1)
    run_without_prefect(params, settings)
    assert estimate_disk(resolve(params, settings)) is None


@pytest.mark.parametrize(
    ("agent", "bytes_of_memory"),
    [
        ({}, 16 * WEIGHTS),
        ({"precision": "bfloat16"}, 18 * WEIGHTS),
        ({"precision": "bfloat16", "lora": {"rank": 16}}, 16 * ADAPTED + 2 * WEIGHTS),
        ({"lora": {"rank": 16}}, 16 * ADAPTED + 4 * WEIGHTS),
    ],
)
def test_too_little_memory_is_warned_of(tmp_path, model, agent, bytes_of_memory, monkeypatch):
    params = model.replace({f"agents._default.{name}": each for name, each in agent.items()})
    settings = ExperimentSettings(home=str(tmp_path), base_dir=str(tmp_path), tracking=False)
    experiment = resolve(params, settings)
    for total, warnings in ((bytes_of_memory, 0), (bytes_of_memory - 1, 1)):
        machine = SimpleNamespace(total=total)
        monkeypatch.setattr(space.psutil, "virtual_memory", lambda machine=machine: machine)
        assert len(space.memory_warnings(experiment)) == warnings


def test_adapters_of_one_base_share_its_memory():
    first, second = (
        space._TrainedModel(Path("base"), trained, 1000, 2, is_rounded=False)
        for trained in (10, 20)
    )
    assert space._memory_bytes([first, second]) == 30 * 16 + 1000 * 2
    full = replace(second, trained=1000, frozen=0)
    assert space._memory_bytes([first, full]) == space._memory_bytes([full, first])
    other = replace(second, folder=Path("other"))
    assert space._memory_bytes([first, other]) == 30 * 16 + 2000 * 2


def test_plan_shows_the_disk_space_and_warns(tmp_path, model, monkeypatch):
    file = tmp_path / "experiment.yaml"
    file.write_text(json.dumps(model.to_saved_dict()))
    arguments = ["plan", str(file), f"settings.home={tmp_path / 'home'}", "--json"]
    shown = json.loads(CliRunner().invoke(app, arguments).stdout)
    (table,) = (table for table in shown["tables"] if table["title"].startswith("Disk"))
    (row,) = table["rows"]
    assert row["required"] == row["num_states"] * row["state_bytes"] > 0
    assert not any("settings.state_retention" in text for text in shown["warnings"])
    monkeypatch.setattr(space.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    shown = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert any("settings.state_retention" in text for text in shown["warnings"])
    assert not any("of memory" in text for text in shown["warnings"])
    monkeypatch.setattr(space.psutil, "virtual_memory", lambda: SimpleNamespace(total=10**6))
    shown = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert any("at least 0.00" in text and "of memory" in text for text in shown["warnings"])
