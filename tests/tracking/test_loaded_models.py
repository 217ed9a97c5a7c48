"""``mlflow.pyfunc.load_model`` loads runs' models, which act like the agents."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import DataError, TrackingError, UnknownNameError
from ratchet.scenarios.registry import build_scenario_instance
from ratchet.tracking import MlflowMirror, ResultTable, RunFolder, RunManifest
from ratchet.tracking.environment import capture_versions
from ratchet.tracking.mirrors.mlflow.client import connect, default_tracking_uri
from trainers.registry import trainer_class

Load = Callable[..., Any]

pytestmark = pytest.mark.slow

LAYERS = ("num_gnn_layers", "num_transformer_layers")
SIZES = ("d_gnn", "d_gin_mlp", "d_transformer", "d_transformer_mlp", "d_node_selector", "d_decider")
NETWORKS = {
    "scenario": "graph_isomorphism",
    "trainer": "vanilla_ppo",
    "dataset": "generated",
    "d_representation": 4,
    "graph_isomorphism": {"num_pairs": 20},
    "rl": {"frames_per_batch": 16, "minibatch_size": 8, "num_epochs": 1, "num_iterations": 1},
    "agents": {
        "_default": dict.fromkeys(LAYERS, 1)
        | dict.fromkeys((*SIZES, "d_value"), 4)
        | {"num_heads": 2}
    },
}
ALONE = NETWORKS | {"trainer": "solo_agent", "solo_agent": {"num_epochs": 1}}
LIBRARY = {
    "scenario": "gymnasium",
    "dataset": "CartPole-v1",
    "trainer": "torchrl_dqn",
    "gymnasium": {"num_test_episodes": 3, "num_train_seeds": 4, "max_episode_steps": 20},
    "torchrl": {
        "batches_per_iteration": 2,
        "config": {
            "trainer": {"total_frames": 96, "optim_steps_per_batch": 2},
            "collector": {"frames_per_batch": 24, "init_random_frames": 24},
            "replay_buffer": {"batch_size": 8, "storage": {"max_size": 100}},
        },
    },
}
LANGUAGE = {
    "scenario": "language_task",
    "dataset": "reverse",
    "trainer": "grpo",
    "rl": {"num_iterations": 1},
    "language_task": {"num_train": 8, "num_test": 2, "reverse": {"length": 3, "num_symbols": 6}},
    "language": {"tasks_per_step": 2, "group_size": 2, "optimizer": {"lr": 0.05}},
    "agents": {
        "_default": {
            "max_tokens": 5,
            "small_model": {
                "layers": 1,
                "d_model": 16,
                "heads": 2,
                "d_mlp": 32,
                "context_length": 32,
            },
        }
    },
}
CHAT = {
    "scenario": "code_validation",
    "trainer": "pure_text_ei",
    "dataset": "generated",
    "interaction_protocol": "nip",
    "code_validation": {"num_train": 4, "num_test": 2},
    "agents": {"_default": {"use_dummy_api": True}},
}


def trained(parameters: dict[str, Any], iterations: int = 1) -> Any:
    """Create a trainer, and train for the given number of iterations."""
    torch.set_num_threads(1)
    hyper_params, settings = HyperParameters(**parameters), ExperimentSettings(progress="none")
    found = trainer_class(hyper_params)
    instance = build_scenario_instance(hyper_params, settings, trainer_type=found.trainer_type)
    trainer = found(hyper_params, instance, settings)
    trainer.initial_state()
    if iterations:
        trainer.run_iterations(0, iterations)
    return trainer


@pytest.fixture
def enter(tmp_path: Path, empty_database: Path) -> Load:
    """Return a function that logs a trainer's state in MLflow as a run's model."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    uri = default_tracking_uri(tmp_path)

    def enter_state(trainer: Any, kind: str, table: dict[str, Any] | None = None) -> str:
        trainer.state.save(tmp_path / "state")
        manifest = RunManifest(
            run_id="one",
            name="one",
            arms={"main": trainer.hyper_params.to_saved_dict()},
            model_kinds={"main": kind},
            optimizer_paths={"main": "learners/*/optimizer"} if kind == "language_model" else {},
            versions=capture_versions(),
        )
        folder = RunFolder.create(tmp_path / "runs", manifest)
        folder.update(checkpoints={"main": sorted(map(str, (tmp_path / "state").iterdir()))})
        if table is not None:
            folder.write_table(ResultTable("test", table))
        folder.set_status("completed")
        MlflowMirror(uri).sync(folder)
        source = connect(uri).get_model_version_by_alias("one", "newest").source
        shutil.rmtree(tmp_path / "runs")
        shutil.rmtree(tmp_path / "state")
        return str(source)

    return enter_state


@pytest.fixture
def load(enter: Load) -> Load:
    """Return a function that logs a trainer's state in MLflow and loads it by its alias."""

    def enter_and_load(*given: Any) -> Any:
        import mlflow.pyfunc

        return mlflow.pyfunc.load_model(enter(*given))

    return enter_and_load


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("parameters", [NETWORKS, ALONE, LIBRARY], ids=["ppo", "alone", "torchrl"])
def test_networks_play_datapoints_as_in_the_runs_test(
    load: Load, parameters: dict[str, Any]
) -> None:
    trainer = trained(parameters)
    table = trainer.run_test().table
    model = load(trainer, "networks", table)
    again = model.predict(pd.DataFrame({"datapoint_id": [2, 0]}))
    for name, column in table.items():
        assert list(again[name]) == [column[2], column[0]], name
    assert list(model.predict(model.input_example)["datapoint_id"]) == [0, 1]
    signature = model.metadata.signature
    assert signature.inputs.input_names() == ["datapoint_id"]
    assert signature.outputs.input_names() == list(table)
    with pytest.raises(DataError, match="datapoint_id: got 9999"):
        model.predict(pd.DataFrame({"datapoint_id": [9999]}))
    on_train = model.predict(pd.DataFrame({"datapoint_id": [1]}), params={"dataset": "train"})
    assert list(on_train["datapoint_id"]) == [1]


def test_networks_of_a_phase_with_a_different_loss_give_the_same_results(load: Load) -> None:
    learned = trained(NETWORKS | {"ppo": {"loss_type": "kl_penalty"}})
    phase = {"name": "last", "num_iterations": 1, "changes": {"ppo.loss_type": "kl_penalty"}}
    given = HyperParameters(**NETWORKS, phases=[phase])
    table = learned.run_test().table
    model = load(SimpleNamespace(state=learned.state, hyper_params=given), "networks", table)
    again = model.predict(pd.DataFrame({"datapoint_id": [2, 0]}))
    for name, column in table.items():
        assert list(again[name]) == [column[2], column[0]], name


def test_a_language_model_answers_prompts_as_in_the_runs_test(enter: Load) -> None:
    import mlflow.pyfunc

    trainer = trained(LANGUAGE)
    tasks = trainer.scenario_instance.test_dataset
    answers = [said["rounds"][0]["messages"][0]["text"] for said in trainer.run_test().transcripts]
    source = enter(trainer, "language_model")
    weights = load_file(Path(source.removeprefix("file://"), "state", "language.safetensors"))
    assert {name.split("/")[3] for name in weights} == {"model"}, "no optimizer"
    model = mlflow.pyfunc.load_model(source)
    prompts = pd.DataFrame({"prompt": [tasks[place].messages[0].content for place in (0, 1)]})
    assert list(model.predict(prompts)["text"]) == answers
    drawn = model.predict(prompts, params={"temperature": 2.0, "seed": 3})["text"]
    assert list(drawn) == list(
        model.predict(prompts, params={"temperature": 2.0, "seed": 3})["text"]
    )
    assert list(drawn) != list(
        model.predict(prompts, params={"temperature": 2.0, "seed": 4})["text"]
    )


def test_a_model_that_cannot_be_written_is_an_error_of_tracking(
    enter: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    trainer = trained(LANGUAGE, iterations=0)
    monkeypatch.setattr("trainers.state_tree.save_file", save_file)
    with pytest.raises(TrackingError, match="No space left"):
        enter(trainer, "language_model")


def test_chat_models_are_queried_at_their_service(load: Load) -> None:
    model = load(trained(CHAT, iterations=0), "chat_models")
    said = model.predict(pd.DataFrame({"prompt": ["Hello", "Hello"]}))["text"]
    assert said[0] != said[1]
    assert said[0]
    again = model.predict(model.input_example, params={"agent": "verifier"})["text"]
    assert again[0] == said[0], "the dummy's response depends only on the seed"
    with pytest.raises(UnknownNameError, match=r"agent: got 'provr'.*'prover'"):
        model.predict(model.input_example, params={"agent": "provr"})


LOAD = """
import json, pickle, sys
import mlflow, pandas, torch

def refuse(*_, **__):
    raise AssertionError("something was unpickled")

pickle.load = pickle.loads = torch.load = refuse
model = mlflow.pyfunc.load_model(sys.argv[1])
played = model.predict(pandas.DataFrame({"datapoint_id": [2, 0]}))
print(json.dumps({name: played[name].tolist() for name in played}))
"""


def test_a_separate_process_needs_only_the_models_files(enter: Load, tmp_path: Path) -> None:
    trainer = trained(NETWORKS)
    table = trainer.run_test().table
    source = enter(trainer, "networks", table).removeprefix("file://")
    elsewhere = tmp_path / "elsewhere"
    shutil.move(source, elsewhere / "model")
    environment = {"PATH": "", "MLFLOW_TRACKING_URI": f"sqlite:///{elsewhere}/none.db"}
    environment |= {"HOME": str(elsewhere), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", LOAD, str(elsewhere / "model")]
    done = subprocess.run(
        command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=True
    )
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == {name: [column[2], column[0]] for name, column in table.items()}
