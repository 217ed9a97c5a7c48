"""``ratchet save-model`` writes trained models that transformers and PEFT load."""

from __future__ import annotations

import string

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from flows.cli.main import app
from flows.runs.without_prefect import run_without_prefect
from ratchet import ExperimentSettings
from ratchet.language_models.local.small_models import SmallModelShape, make_small_model
from ratchet.store.store import StageStore
from ratchet.tracking.run_folder import find_run
from ratchet.tracking.trainer_files import STATE_FOLDER
from tests.trainers.language.test_language_trainer import parameters
from trainers.language.state import LanguageState

REWARD = "def reward(task, completion, messages):\n    return sum(map(ord, completion)) / 1000\n"
IDS = torch.arange(3, 11)[None]


@pytest.fixture
def finished(tmp_path):
    """A run of 2 iterations with the adapter of a model, and its last state."""
    shape = SmallModelShape(context_length=32)
    make_small_model(tmp_path / "model", alphabet=string.printable, shape=shape)
    (tmp_path / "reward.py").write_text(REWARD)
    agent = {"model": "model", "max_tokens": 5, "lora": {"rank": 4}}
    learning = {"optimizer": {"lr": 0.01}, "group_size": 4}
    hyper_params = parameters(
        agents={"_default": agent}, rl={"num_iterations": 2}, language=learning
    ).replace({"language_task.evaluator": "reward.py:reward"})
    settings = ExperimentSettings(
        **{name: str(tmp_path / name) for name in ("home", "runs")},
        base_dir=str(tmp_path),
        iterations_per_task=1,
        tracking=False,
    )
    run_without_prefect(hyper_params, settings)
    (run,) = (tmp_path / "runs").glob("*/manifest.json")
    return run.parent.name


def invoke(tmp_path, *arguments):
    return CliRunner().invoke(
        app, ["save-model", *map(str, arguments), "--runs-dir", str(tmp_path / "runs")]
    )


def logits(network):
    with torch.no_grad():
        return network(IDS).logits


def test_adapters_and_merged_models_are_those_of_the_state(tmp_path, finished):
    for name, more in {
        "last": (),
        "first": ("--iteration", 1),
        "merged": ("--merge",),
    }.items():
        result = invoke(tmp_path, finished, tmp_path / name, *more)
        assert result.exit_code == 0, result.output
        iterations = 1 if more == ("--iteration", 1) else 2
        assert result.stdout == f"{tmp_path / name / 'agent'}: after {iterations} iterations\n"

    def base():
        return AutoModelForCausalLM.from_pretrained(tmp_path / "model")

    adapted = {
        name: logits(PeftModel.from_pretrained(base(), tmp_path / name / "agent"))
        for name in ("last", "first")
    }
    assert not torch.allclose(adapted["last"], adapted["first"])
    assert not torch.allclose(adapted["first"], logits(base()))
    assert not (tmp_path / "merged" / "agent" / "adapter_config.json").exists()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged" / "agent")
    torch.testing.assert_close(logits(merged), adapted["last"])
    folder = find_run(tmp_path / "runs", finished)
    (key,) = [r.key for r in folder.manifest.stages if r.stage == "train" and r.iteration == 2]
    state = LanguageState.load(StageStore(tmp_path / "home" / "store").open(key) / STATE_FOLDER)
    trained = PeftModel.from_pretrained(base(), tmp_path / "last" / "agent").state_dict()
    for name, weight in state.learners["agent"]["model"].items():
        adapted_name = name.replace(".weight", ".default.weight")
        assert torch.equal(trained[adapted_name], torch.as_tensor(weight))


def test_mistakes_leave_nothing(tmp_path, finished):
    target = tmp_path / "out" / "models"
    for arguments, message in {
        (finished, target, "--iteration", 7): "no stored state after 7",
        (finished, target, "--arm", "other"): "expected one of the arms ['main']",
        (finished, tmp_path / "model"): "already exists",
    }.items():
        result = invoke(tmp_path, *arguments)
        assert result.exit_code == 2, result.output
        assert message in " ".join(result.stderr.split())
    assert not target.exists()
    assert not list(tmp_path.glob("out/*"))
