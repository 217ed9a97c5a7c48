"""Sweeps: members share stages, fail independently, and can be resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from flows import resume_experiment, run_sweep
from flows.cli.main import app
from flows.process.environment import prepare_environment
from ratchet.errors import StageFailedError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.run_folder import RunFolder, list_runs
from ratchet.tracking.sweep_folder import read_sweep

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
GRID = {"rl.lr": [0.1, 0.2], "seed": [0, 1]}
SHARED = {"graph_isomorphism__dataset_seed": 0, "pretrain_agents": False}


@pytest.fixture(autouse=True)
def _quiet(lab, monkeypatch):
    monkeypatch.setenv("TINY_LOG", str(lab.log))
    prepare_environment(lab.folder / "home")


def sweep(lab, grid=None, *, parallel=1, **changes):
    chosen = ExperimentSettings.from_dict(lab.settings())
    parameters = lab.hyper_params(**{**SHARED, **changes})
    return run_sweep(parameters, grid or GRID, chosen, name="tiny", parallel=parallel)


def statuses(lab):
    return {folder.run_id: folder.manifest.status for folder in list_runs(lab.folder / "runs")}


def test_members_share_stages_and_a_second_sweep_is_fully_cached(lab):
    results = sweep(lab)
    done = lab.done()
    assert Counter(what.split()[0] for what in done) == {"train": 4 * 7, "test": 4}
    datasets = {
        record.key
        for folder in list_runs(lab.folder / "runs")
        for record in folder.manifest.stages
        if record.stage == "build_scenario"
    }
    assert len(datasets) == 1
    again = sweep(lab)
    assert [result.computed for result in again] == [0, 0, 0, 0]
    assert [result.states for result in again] == [result.states for result in results]
    assert lab.done() == done


def test_a_value_may_be_a_mapping(lab):
    factors = [{"actor": factor, "critic": factor} for factor in (0.5, 2.0)]
    results = sweep(lab, {"agents._default.agent_lr_factor": factors})
    assert len({result.run_id for result in results}) == 2


def test_sequential_and_parallel_members_give_the_same_results(lab, new_lab, monkeypatch):
    other = new_lab()
    first = sweep(lab)
    monkeypatch.setenv("TINY_LOG", str(other.log))
    second = sweep(other, parallel=2)
    assert [r.run_id for r in first] == [r.run_id for r in second]
    assert [r.metrics for r in first] == [r.metrics for r in second]
    assert [lab.weights(r.to_dict()) for r in first] == [other.weights(r.to_dict()) for r in second]


def test_other_members_run_after_a_failure_and_the_same_command_resumes(lab, monkeypatch):
    once = lab.folder / "once"
    monkeypatch.setenv("RATCHET_FAULT", f"stage=train;iteration=6;kind=raise;once={once}")
    with pytest.raises(StageFailedError, match=r"1 of 4 members failed") as failure:
        sweep(lab)
    by_status = Counter(statuses(lab).values())
    assert by_status == {"completed": 3, "failed": 1}
    (failed,) = [run for run, status in statuses(lab).items() if status == "failed"]
    assert f"ratchet resume {failed}" in str(failure.value)
    assert "Run the same command again" in str(failure.value)
    before = len(lab.done())
    assert len(sweep(lab)) == 4
    assert set(statuses(lab).values()) == {"completed"}
    # three of its seven iterations were stored when it failed
    assert Counter(what.split()[0] for what in lab.done()[before:]) == {"train": 4, "test": 1}


SECTIONS = {
    "grid": {"kind": "grid", "parameters": {"seed": [0, 1]}},
    "optuna": {
        "kind": "optuna",
        "parameters": {"rl.lr": {"kind": "uniform", "low": 0.05, "high": 2.0}},
        "metric": "train/norm",
        "num_trials": 2,
    },
}


@pytest.mark.parametrize("kind", SECTIONS)
def test_retry_failed_runs_only_failed_members(kind, lab, monkeypatch):
    """Members that have not started, as in an interrupted sweep, are not run."""
    trainer = {"module_path": str(HERE / "tiny_trainer.py"), "class_name": "TinyTrainer"}
    content = lab.hyper_params(**SHARED, trainer=trainer)
    settings = lab.settings(base_dir=str(lab.folder))
    file = lab.folder / "tiny.yaml"
    file.write_text(json.dumps({**content, "settings": settings, "sweep": SECTIONS[kind]}))

    def ratchet_sweep(*options):
        command = ["sweep", str(file), "--name", "search", "--no-progress", *options]
        return CliRunner().invoke(app, command)

    once = lab.folder / "once"
    monkeypatch.setenv("RATCHET_FAULT", f"stage=train;iteration=6;kind=raise;once={once}")
    assert ratchet_sweep().exit_code == 1
    (failed,) = [run for run, status in statuses(lab).items() if status == "failed"]
    (other,) = statuses(lab).keys() - {failed}
    RunFolder(lab.folder / "runs" / other).delete()
    before = len(lab.done())
    told = ratchet_sweep("--retry-failed")
    assert told.exit_code == 0, told.output
    assert statuses(lab) == {failed: "completed"}
    assert Counter(what.split()[0] for what in lab.done()[before:]) == {"train": 4, "test": 1}
    told = ratchet_sweep("--retry-failed")
    assert told.exit_code == 0, told.output
    assert len(lab.done()) == before + 5


def test_a_member_whose_process_is_killed_is_the_only_one_that_fails(lab, monkeypatch):
    once = lab.folder / "once"
    monkeypatch.setenv("RATCHET_FAULT", f"stage=train;iteration=6;kind=kill;once={once}")
    with pytest.raises(StageFailedError, match=r"ended by signal SIGKILL"):
        sweep(lab, parallel=2)
    assert Counter(statuses(lab).values()) == {"completed": 3, "failed": 1}
    (failed,) = [run for run, status in statuses(lab).items() if status == "failed"]
    manifest = RunFolder(lab.folder / "runs" / failed).manifest
    assert "SIGKILL" in str(manifest.error)
    monkeypatch.delenv("RATCHET_FAULT")
    assert len(sweep(lab, parallel=2)) == 4


def test_processes_end_with_a_sweep_that_is_killed(lab):
    """Otherwise they would continue in parallel with the processes of the resumed sweep."""
    request = {
        "hyper_params": lab.hyper_params(**SHARED),
        "settings": lab.settings(),
        "grid": GRID,
    }
    code = (
        "import json, sys; from flows import run_sweep;"
        "from ratchet.parameters.settings import ExperimentSettings;"
        "r = json.loads(sys.argv[1]);"
        "run_sweep(r['hyper_params'], r['grid'],"
        " ExperimentSettings.from_dict(r['settings']), name='tiny', parallel=2)"
    )
    environment = {**lab.child_environment(), "TINY_SECONDS": "1"}
    process = subprocess.Popen([sys.executable, "-c", code, json.dumps(request)], env=environment)
    wait_for(lambda: lab.done())
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=120)
    assert not alive


def test_the_sweep_record_lists_its_members(lab):
    results = sweep(lab, {"seed": [0, 1]})
    record = read_sweep(lab.folder / "runs", "tiny-sweep")
    assert [member.run_id for member in record.members] == [result.run_id for result in results]
    assert [member.changes for member in record.members] == [{"seed": 0}, {"seed": 1}]
    manifest = RunFolder(results[0].folder).manifest
    assert manifest.parent_run_id == record.sweep_id


def wait_for(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


CHOSEN = {
    "kind": "optuna",
    "parameters": {"rl.lr": {"kind": "uniform", "low": 0.05, "high": 2.0}},
    "metric": "train/norm",
    "direction": "minimize",
    "num_trials": 6,
    "num_startup_trials": 2,
    "pruner": {"kind": "median", "num_startup_trials": 1},
    "seed": 5,
}


def standings(lab):
    """Return the journal, and each run's status with its finished iterations."""
    (journal,) = (lab.folder / "runs").glob("*/study.jsonl")
    runs = list_runs(lab.folder / "runs")
    return journal.read_text(), {
        folder.run_id: (
            folder.status,
            [r.iteration for r in folder.manifest.stages if r.stage == "train"],
        )
        for folder in runs
    }


def test_an_optuna_sweep_gives_the_same_results_after_a_kill(lab, new_lab, monkeypatch):
    """Pruned members keep their stages, and continue training when resumed separately."""
    other = new_lab()
    results = sweep(lab, CHOSEN)
    journal, runs = standings(lab)
    assert len(results) == 6
    by_status = Counter(status for status, _ in runs.values())
    assert by_status["completed"] + by_status["pruned"] == 6
    assert by_status["pruned"] >= 1
    pruned, iterations = next((r, its) for r, (status, its) in runs.items() if status == "pruned")
    assert iterations[-1] < 7
    page = next((lab.folder / "runs").glob("*/sweep.html")).read_text()
    assert "pruned" in page
    assert 'http-equiv="refresh"' not in page
    again = sweep(lab, CHOSEN)
    assert standings(lab)[0] == journal
    assert [r.run_id for r in again] == [r.run_id for r in results]

    settings = ExperimentSettings.from_dict(lab.settings())
    before = len(lab.done())
    resume_experiment(pruned, settings, runs=str(lab.folder / "runs"))
    assert standings(lab)[1][pruned] == ("completed", [*iterations, 6, 7][-3:])
    assert len(lab.done()) - before <= 7 - iterations[-1] + 1

    request = {"hyper_params": other.hyper_params(**SHARED), "settings": other.settings()}
    code = (
        "import json, sys; from flows import run_sweep;"
        "from ratchet.parameters.settings import ExperimentSettings;"
        "r = json.loads(sys.argv[1]);"
        "run_sweep(r['hyper_params'], r['grid'],"
        " ExperimentSettings.from_dict(r['settings']), name='tiny')"
    )
    fault = f"stage=train;iteration=6;kind=kill;once={other.folder / 'once'}"
    environment = {**other.child_environment(), "RATCHET_FAULT": fault}
    killed = subprocess.run(
        [sys.executable, "-c", code, json.dumps({**request, "grid": CHOSEN})],
        env=environment,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    monkeypatch.setenv("TINY_LOG", str(other.log))
    sweep(other, CHOSEN)
    assert standings(other) == (journal, runs)


SOME_SCORES = {
    "kind": "optuna",
    "metric": "train/score",
    "num_trials": 4,
    "num_startup_trials": 4,
    "sampler": "random",
}
RATES = {"some": [0.25, 0.75, 1.5, 2.5], "none": [1.5, 2.5]}


def scored_sweep(lab, rates, parallel):
    trainer = {"module_path": str(HERE / "tiny_trainer.py"), "class_name": "TinyScoredTrainer"}
    search = {**SOME_SCORES, "parameters": {"rl.lr": RATES[rates]}}
    content = lab.hyper_params(**SHARED, trainer=trainer)
    settings = lab.settings(base_dir=str(lab.folder))
    file = lab.folder / "tiny.yaml"
    file.write_text(json.dumps({**content, "settings": settings, "sweep": search}))
    command = ["sweep", str(file), "--name", "search", "--no-progress", "-j", str(parallel)]
    return CliRunner().invoke(app, command)


@pytest.mark.parametrize("parallel", [1, 2])
def test_members_without_the_metric_do_not_end_a_search(lab, parallel):
    ended = scored_sweep(lab, "some", parallel)
    assert ended.exit_code == 0, ended.output
    assert Counter(statuses(lab).values()) == {"completed": 4}
    journal = (lab.folder / "runs" / "search" / "study.jsonl").read_text()
    outcomes = [json.loads(line) for line in journal.splitlines() if '"tell"' in line]
    assert Counter((line["state"], line["value"]) for line in outcomes) == {
        ("completed", 0.75): 1,
        ("completed", "inf"): 1,
        ("unscored", None): 2,
    }
    page = (lab.folder / "runs" / "search" / "sweep.html").read_text()
    for text in (" ".join(ended.output.split()), page):
        assert "train/score is not finite, which counts as the worst score: rl.lr=0.25" in text
        assert "train/score was not recorded, so that they have no score: rl.lr=" in text
    assert "Best so far: 0.750 (one seed) with rl.lr=0.75" in page


def test_a_search_stops_once_its_first_members_all_lack_the_metric(lab):
    for _ in range(2):
        ended = scored_sweep(lab, "none", 1)
        assert ended.exit_code == 2
        text = " ".join(ended.output.split())
        assert "has not recorded 'train/score', nor have the 1 that ended before it" in text
        assert Counter(statuses(lab).values()) == {"completed": 2}  # all members that exist
