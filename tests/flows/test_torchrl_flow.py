"""TorchRL trainers give the same result after a kill; the shipped experiments learn."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ratchet.experiment_files.loading import load_experiment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def small():
    """Return the module of small experiments of the trainers' tests."""
    path = ROOT / "tests" / "trainers" / "torchrl" / "small_trainers.py"
    spec = importlib.util.spec_from_file_location("small_trainers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stages(lab):
    return lab.folder / "home" / "store" / "stages"


def final_state(lab, result):
    from trainers.torchrl.state import TorchRlState

    def folder_of(key):
        return stages(lab) / key / "state"

    return TorchRlState.load(folder_of(result["states"]["main"]), folder_of)


def stored_frames(lab):
    """Return the total number of frames in all stages."""
    from safetensors.torch import load_file

    files = [load_file(path) for path in stages(lab).glob("*/state/*.frames.safetensors")]
    return sum(len(next(iter(frames.values()))) for frames in files)


def quick_first(cases):
    """Return the first case, and the others for ``make test-exhaustive``."""
    first, *others = cases
    return [first, *(pytest.param(other, marks=pytest.mark.exhaustive) for other in others)]


ROOM = {
    "dqn": {"replay_buffer__storage__max_size": 1000},
    "ppo": {},
    "sac": {"replay_buffer__storage__max_size": 1000},
    "offline_to_online": {"replay_buffer__online_capacity": 1000, "trainer__anneal_frames": 120},
}


@pytest.mark.parametrize("algorithm", quick_first(ROOM))
def test_a_killed_run_gives_the_result_of_one_uninterrupted_stage(lab, small, algorithm):
    chosen = small.parameters(algorithm, **ROOM[algorithm])
    settings = lab.settings(iterations_per_task=1)
    lab.kill("stage=train;iteration=3;within=0.02", chosen.to_dict(), settings)
    before = {path.name for path in stages(lab).iterdir()}
    result = lab.run(chosen.to_dict(), settings)
    assert result["cached"] == len(before) == 4  # data, initial state, two iterations
    whole = small.build(chosen)
    whole.initial_state()
    metrics = whole.run_iterations(0, 4)
    assert final_state(lab, result) == whole.state
    recorded = [dict(entry[3]) for entry in lab.metrics(result) if entry[1] == "train"]
    assert recorded == metrics
    if algorithm != "ppo":
        assert stored_frames(lab) == 4 * 48  # each frame once
    longer = chosen.replace({"trainer.total_frames": 240}).to_dict()
    more = lab.run(longer, settings)
    assert more["computed"] == 2  # one more iteration, and its test


def returns_in_mlflow(lab, result):
    """Return the tracked curve of returns."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{lab.folder / 'home' / 'mlflow.db'}")
    experiments = [e.experiment_id for e in client.search_experiments()]
    (run,) = client.search_runs(experiments)
    names = [name for name in run.data.metrics if name.endswith("episode_return")]
    assert names, sorted(run.data.metrics)
    return [point.value for point in client.get_metric_history(run.info.run_id, names[0])]


EXPERIMENTS = {
    "cartpole_ppo": 475.0,
    "cartpole_dqn": 475.0,
    "pendulum_sac": -250.0,
    "library_ppo": 475.0,
}


@pytest.mark.parametrize("name", quick_first(EXPERIMENTS))
def test_a_shipped_experiment_reaches_its_usual_return_with_curves_in_mlflow(lab, name):
    chosen = load_experiment(
        ROOT / "experiments" / f"{name}.yaml", ["gymnasium.num_test_episodes=20"]
    )
    per_task = chosen.settings.iterations_per_task
    process, path = lab.start(
        chosen.hyper_params.to_dict(),
        lab.settings(tracking=True, iterations_per_task=per_task),
    )
    assert process.wait(850) == 0
    result = lab.read(path)
    (test,) = [dict(entry[3]) for entry in lab.metrics(result) if entry[1] == "test"]
    (found,) = [value for key, value in test.items() if key.endswith("mean_episode_reward")]
    assert found >= EXPERIMENTS[name]
    curve = returns_in_mlflow(lab, result)
    assert len(curve) >= 3
    assert max(curve) > curve[0]
