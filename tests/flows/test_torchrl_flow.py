"""TorchRL trainers give the same result after a kill; the shipped experiments learn."""

from __future__ import annotations

import importlib.util
import signal
import time
from pathlib import Path

import psutil
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


def test_a_killed_run_with_parallel_environments_gives_the_result_of_a_serial_one(lab, small):
    few = ("frames_per_batch=256", "total_frames=1024")
    overrides = ["torchrl.batches_per_iteration=1", *(f"collector.{option}" for option in few)]

    def chosen(kind):
        batched = [f"training_env.batched_env_type={kind}"]
        return load_experiment(ROOT / "experiments/library_ppo.yaml", overrides + batched)

    parallel = chosen("parallel").hyper_params.to_dict()
    settings = lab.settings(iterations_per_task=1)
    lab.kill("stage=train;iteration=3;within=0.02", parallel, settings)
    before = {path.name for path in stages(lab).iterdir()}
    result = lab.run(parallel, settings)
    assert result["cached"] == len(before) == 4  # data, initial state, two iterations
    whole = small.build(chosen("serial").hyper_params)
    whole.initial_state()
    whole.run_iterations(0, 4)
    assert final_state(lab, result) == whole.state


def collecting_workers(process, count):
    """Wait until a run has this number of worker processes; return them."""

    def workers():
        children = psutil.Process(process.pid).children(recursive=True)
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]

    return wait_for(lambda: found if len(found := workers()) == count else None)


def wait_for(condition, seconds=300.0):
    """Return the first true result of a condition."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(0.2)
    raise TimeoutError(f"not within {seconds} s")


@pytest.mark.parametrize("kind", quick_first(["multi_async", "multi_sync"]))
def test_a_run_survives_a_killed_worker_and_ends_with_ctrl_c(lab, small, kind):
    chosen = small.parameters(
        "ppo",
        torchrl__choices={"collector": kind},
        torchrl__batches_per_iteration=10_000,
        collector__num_workers=2,
        trainer__total_frames=10_000_000,
        trainer__weight_update_map={"policy": "loss_module.actor_network"},
    )
    settings = lab.settings(retries=1, retry_delay_seconds=0)
    process, _ = lab.start(chosen.to_dict(), settings)
    output = lab.folder / "output-1.txt"
    try:
        victim, _ = collecting_workers(process, 2)
        wait_for(lambda: any(stages(lab).glob("*/manifest.json")))
        victim.kill()
        wait_for(lambda: f"(process {victim.pid}) ended with SIGKILL" in output.read_text(), 120)
        workers = collecting_workers(process, 2)
        process.send_signal(signal.SIGINT)
        process.wait(240)
    finally:
        process.kill()
    _, alive = psutil.wait_procs(workers, 10)
    assert not alive


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


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EXPERIMENTS)
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
