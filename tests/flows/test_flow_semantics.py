"""Cache hits and recomputation: flows run in this process with a Prefect server."""

from __future__ import annotations

import asyncio
import errno
import json
import time
from collections import Counter

import pytest
from typer.testing import CliRunner

from flows import fork_experiment, plan_experiment, resume_experiment, run_experiment
from flows.cli.main import app
from flows.process.environment import prepare_environment
from ratchet.errors import ParameterError, StoreError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.local import LocalFolder
from ratchet.tracking.run_folder import RunFolder

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _quiet(lab, monkeypatch):
    monkeypatch.setenv("TINY_LOG", str(lab.log))
    prepare_environment(lab.folder / "home")


def run(lab, settings=None, *, arms=None, force=False, **changes):
    chosen = ExperimentSettings.from_dict(settings or lab.settings())
    parameters = lab.hyper_params(**changes)
    return run_experiment(parameters, chosen, arms=arms, name="tiny", force=force)


def flow_states(run_id):
    """Return the states of a run's flow runs and of the latest one's task runs, from the API."""
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
    from prefect.client.schemas.sorting import FlowRunSort

    async def read():
        async with get_client() as client:
            named = FlowRunFilter(name=FlowRunFilterName(any_=[run_id]))
            runs = await client.read_flow_runs(
                flow_run_filter=named, sort=FlowRunSort.START_TIME_DESC
            )
            latest = FlowRunFilter(id={"any_": [runs[0].id]})
            tasks = await client.read_task_runs(flow_run_filter=latest)
            return [r.state.name for r in runs], {t.name: t.state_name for t in tasks}

    return asyncio.run(read())


def wait_for_states(run_id, names):
    """Wait until all task runs have finished according to the API, which lags behind."""
    for _ in range(100):
        flows, tasks = flow_states(run_id)
        if names <= tasks.keys() and not {"Running", "Pending", None} & set(tasks.values()):
            return flows, tasks
        time.sleep(0.3)
    raise AssertionError(f"got {tasks}, expected {names}")


def test_prefect_shows_stored_stages_as_cached(lab):
    result = run(lab)
    labels = {"build scenario main", "train main 3-6", "pretrain main prover", "test main test"}
    flows, tasks = wait_for_states(result.run_id, labels)
    assert flows[0] == "Completed"
    assert {tasks[label] for label in labels} == {"Completed"}
    run(lab)
    flows, tasks = wait_for_states(result.run_id, labels)
    assert flows[:2] == ["Completed", "Completed"]
    assert set(tasks.values()) == {"Cached"}


def test_more_iterations_continue_training_and_changed_tests_only_test(lab):
    run(lab)
    before = len(lab.done())
    longer = run(lab, rl__num_iterations=9)
    assert lab.done()[before:] == ["train 7", "train 8", "test test"]
    assert longer.computed == 2
    before = len(lab.done())
    run(lab, rl__num_iterations=9, rl__num_test_iterations=3)
    assert lab.done()[before:] == ["test test"]


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_stage_boundaries_change_neither_keys_nor_weights(lab, size):
    reference = run(lab)
    store = str(lab.folder / "other")
    settings = lab.settings(iterations_per_task=size, store=store, run_id=f"cut-{size}")
    other = run(lab, settings)
    assert other.states == reference.states
    stage = lab.folder / "other" / "stages" / other.states["main"]
    assert lab.hashes(stage) == lab.weights(reference.to_dict())
    assert lab.metrics(other.to_dict()) == lab.metrics(reference.to_dict())
    shared = run(lab, lab.settings(iterations_per_task=size, run_id=f"shared-{size}"))
    assert shared.computed == 0


def test_a_damaged_stage_is_detected_quarantined_and_recomputed(lab):
    first = run(lab)
    weights = lab.weights(first.to_dict())
    file = lab.folder / "home/store/stages" / first.states["main"] / "state/weights.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    before = len(lab.done())
    second = run(lab)
    assert lab.done()[before:] == ["train 6"]
    assert second.states == first.states
    assert lab.weights(second.to_dict()) == weights
    assert len(list((lab.folder / "home/store/damaged").iterdir())) == 1
    events = RunFolder(second.folder).read_events()
    assert [event["kind"] for event in events if event["kind"] == "stage_damaged"]
    lab.metrics(second.to_dict())  # no entry is replaced or duplicated


def test_a_full_store_makes_the_flow_fail(lab, monkeypatch):
    original = LocalFolder.publish

    def publish(self, work, key, manifest):
        if manifest.stage == "train" and manifest.iteration == 6:
            raise OSError(errno.ENOSPC, "No space left on device", str(work))
        return original(self, work, key, manifest)

    monkeypatch.setattr(LocalFolder, "publish", publish)
    with pytest.raises(StoreError):
        run(lab)
    (folder,) = (lab.folder / "runs").iterdir()
    assert RunFolder(folder).manifest.status == "failed"
    for _ in range(50):
        flows, tasks = flow_states(folder.name)
        if tasks.get("train main 3-6") == "Failed":
            break
        time.sleep(0.2)
    assert flows[0] == "Failed"
    assert tasks["train main 3-6"] == "Failed"
    monkeypatch.setattr(LocalFolder, "publish", original)
    run(lab)
    assert Counter(lab.done())["train 2"] == 1
    assert flow_states(folder.name)[0][:2] == ["Completed", "Failed"]


def test_a_store_that_cannot_be_created_makes_the_flow_fail(lab):
    (lab.folder / "file").write_text("in the way")
    with pytest.raises(StoreError, match="store"):
        run(lab, lab.settings(store=str(lab.folder / "file" / "store"), run_id="unwritable"))
    assert flow_states("unwritable")[0] == ["Failed"]
    assert lab.done() == []


def test_arms_share_common_stages(lab):
    result = run(lab, arms={"slow": {"rl.lr": 0.25}})
    counts = Counter(lab.done())
    assert counts["pretrain prover"] == 1
    assert counts["train 0"] == counts["test test"] == 2
    assert result.states["main"] != result.states["slow"]


def test_each_arm_has_the_hashes_of_its_data(lab):
    result = run(lab, arms={"same": {"rl.lr": 0.25}, "other": {"seed": 12}})
    hashes = RunFolder(result.folder).manifest.dataset_hashes
    assert hashes["main"] == hashes["same"]
    assert hashes["main"].keys() == hashes["other"].keys()
    assert hashes["main"] != hashes["other"]


def test_a_fork_shares_earlier_stages_and_continues_with_changed_parameters(lab):
    parent = run(lab)
    before = len(lab.done())
    settings = ExperimentSettings.from_dict(lab.settings())
    child = fork_experiment(parent.run_id, "3:train", {"rl.lr": 0.25}, settings)
    assert lab.done()[before:] == [f"train {i}" for i in range(3, 7)] + ["test test"]
    assert child.run_id != parent.run_id
    metrics = {entry[:3]: entry[3] for entry in lab.metrics(child.to_dict())}
    theirs = {entry[:3]: entry[3] for entry in lab.metrics(parent.to_dict())}
    assert all(metrics["main", "train", i] == theirs["main", "train", i] for i in range(3))
    assert metrics["main", "train", 3] != theirs["main", "train", 3]
    assert RunFolder(child.folder).manifest.fork_parent == parent.run_id
    before = len(lab.done())
    again = fork_experiment(parent.run_id, 3, {"rl.lr": 0.25}, settings)
    assert (again.run_id, again.states) == (child.run_id, child.states)
    assert resume_experiment(child.run_id, settings).states == child.states
    assert lab.done()[before:] == []
    with pytest.raises(ParameterError, match=r"expected one of 0, 3, 6, 7"):
        fork_experiment(parent.run_id, "5", {}, settings)


@pytest.mark.exhaustive  # the shipped experiments are compared alike
def test_the_planned_stages_are_the_executed_ones(lab):
    settings = ExperimentSettings.from_dict(lab.settings())
    plan = plan_experiment(lab.hyper_params(), settings)
    assert [stage.hit for stage in plan] == [False] * len(plan)
    assert lab.done() == []
    result = run(lab)
    assert result.computed == len(plan)
    stages = RunFolder(result.folder).manifest.stages
    assert [(s.stage, s.iteration, s.key) for s in stages] == [
        (s.stage, s.iteration, s.key) for s in plan
    ]
    plan = plan_experiment(lab.hyper_params(rl__lr=0.25), settings)
    missed = [stage for stage in plan if not stage.hit]
    assert [stage.stage for stage in missed] == ["train", "train", "train", "test"]
    assert "rl.lr: 0.5 → 0.25" in missed[0].reason
    assert all(stage.hit for stage in plan_experiment(lab.hyper_params(), settings))


def test_forced_stages_are_recomputed_with_equal_results(lab):
    first = run(lab)
    second = run(lab, force=True)
    assert (second.computed, second.cached) == (first.computed, 0)
    assert second.states == first.states
    assert Counter(lab.done())["train 0"] == 2


def test_force_recomputes_stages_that_arms_share_once(lab):
    arms = {"same": {}, "longer": {"rl.num_iterations": 9}, "slow": {"rl.lr": 0.25}}
    first = run(lab, arms=arms)
    work = Counter(lab.done())
    assert first.stage_counts == f"{first.computed} computed, {first.shared} shared between arms"
    assert first.cached == first.shared > 0
    second = run(lab, force=True, arms=arms)
    assert (second.computed, second.cached) == (first.computed, first.cached)
    assert second.states == first.states
    assert Counter(lab.done()) == Counter({name: 2 * count for name, count in work.items()})
    assert lab.metrics(second.to_dict()) == lab.metrics(first.to_dict())


def test_a_trainer_without_stages_runs_as_one_stage(lab):
    trainer = {"module_path": "tiny_trainer.py", "class_name": "TinyWholeTrainer"}
    first = run(lab, trainer=trainer)
    second = run(lab, trainer=trainer)
    assert (first.computed, second.computed, second.cached) == (2, 0, 2)
    assert lab.done() == ["run_trainer"]
    entries = lab.metrics(second.to_dict())
    assert ("main", "train", 2) in [entry[:3] for entry in entries]
    assert second.metrics == {"main": {"test": {"accuracy": 0.5}}}
    third = run(lab, force=True, trainer=trainer)
    assert lab.metrics(third.to_dict()) == entries, "the global random generators were not seeded"


def damage(folder):
    """Damage the derived files of a run folder; return their original text."""
    names = ("tables/main-test.json", "metrics.jsonl", "report.html")
    before = {name: (folder.path / name).read_text() for name in names}
    (folder.path / "tables" / "main-test.json").unlink()
    first, second, *others = before["metrics.jsonl"].splitlines(keepends=True)
    changed = json.loads(second)
    changed["values"] = {name: value + 1 for name, value in changed["values"].items()}
    changed["iteration"] += 1000
    broken = [first.replace('"values": {', '"values": {"made_up": 7, '), json.dumps(changed) + "\n"]
    text = "".join([*broken, "{\n", *others, '{"arm": "ma'])
    (folder.path / "metrics.jsonl").write_text(text)
    (folder.path / "report.html").write_text("<html>torn")
    return before


def shown(folder):
    """Return the tables and metrics of a run folder, without times."""
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    points = sorted(str({**json.loads(line), "time": 0}) for line in lines)
    return [table.to_json() for table in folder.read_tables()], points


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("again", ["run", "resume", "report"])
def test_derived_files_of_a_run_folder_are_rebuilt_from_the_store(lab, again):
    result = run(lab)
    folder = RunFolder(result.folder)
    sound = shown(folder)
    before = damage(folder)
    if again == "report":
        done = CliRunner().invoke(
            app, ["report", folder.run_id, "--runs-dir", str(folder.path.parent)]
        )
        assert done.exit_code == 0, done.output
    else:
        settings = ExperimentSettings.from_dict(lab.settings())
        repeated = run(lab) if again == "run" else resume_experiment(folder.run_id, settings)
        assert (repeated.computed, repeated.run_id) == (0, folder.run_id)
    assert shown(RunFolder(folder.path)) == sound
    report = (folder.path / "report.html").read_text()
    assert "made_up" not in report
    assert len(report) > len(before["report.html"]) / 2
    (event,) = [each for each in folder.read_events() if each["kind"] == "rebuilt"][:1]
    assert "metrics.jsonl" in event["message"]


def test_a_changed_table_is_rebuilt_from_the_store(lab):
    folder = RunFolder(run(lab).folder)
    path = folder.path / "tables" / "main-test.json"
    sound = path.read_text()
    for damaged in (sound.replace("[1", "[0", 1), sound[:40], sound.replace("main", "mine", 1)):
        path.write_text(damaged)
        run(lab)
        assert path.read_text() == sound
