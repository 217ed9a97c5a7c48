"""States of language models are removed while a run trains, and computed again on request."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from flows.planning.space import DiskEstimate
from flows.runs import setup
from flows.runs.derived_runs import fork_experiment, resolve_fork
from flows.runs.import_run import import_run
from flows.runs.removed_states import removable_states
from flows.runs.resolve import resolve, resolve_run
from flows.runs.restored_states import restore_state
from flows.runs.verify import verify_run
from flows.runs.without_prefect import run_without_prefect
from ratchet.errors import CheckPointNotFoundError, ParameterError, StoreError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.garbage_collection import note_user
from ratchet.store.store import StageStore
from ratchet.tracking.run_folder import RunFolder
from tests.flows.test_language_flow import CHOSEN
from trainers.language.trainer import LanguageTrainer

NETWORKS = {"trainer": "vanilla_ppo", "scenario": "graph_isomorphism", "dataset": "generated"}
slow = pytest.mark.slow
FILE = "state/language.safetensors"


def settings_in(folder, **changes):
    return ExperimentSettings.from_dict(
        {
            "home": str(folder / "home"),
            "runs": str(folder / "runs"),
            "iterations_per_task": 1,
            "checkpoint_period": 3,
            "state_retention": "checkpoints",
            "retries": 0,
            "tracking": False,
            "progress": "none",
            **changes,
        }
    )


def params(iterations=6, **changes):
    return {**CHOSEN, "rl": {"num_iterations": iterations}, **changes}


def removed(run):
    """Return the iterations of a run's removed states, whose files must be gone."""
    folder = RunFolder(Path(run.folder))
    store = StageStore(ExperimentSettings.from_dict(folder.manifest.settings).store_url)
    iterations = []
    for record in folder.manifest.stages:
        manifest = store.peek(record.key)
        assert manifest is not None
        if record.stage == "train":
            path = store.backend.folder.stage_path(record.key)
            assert (path / FILE).exists() is not bool(manifest.removed)
        if manifest.removed:
            assert (record.stage, manifest.removed) == ("train", (FILE,))
            iterations.append(record.iteration)
    return iterations


def restored(run, iteration):
    return restore_state(resolve_run(run.run_id, None, str(Path(run.folder).parent)), iteration)


@pytest.fixture
def run(tmp_path):
    return run_without_prefect(params(), settings_in(tmp_path), name="a")


def test_which_states_may_go(tmp_path):
    (keys,) = resolve(params(), settings_in(tmp_path)).keys
    done = [1, 2, 3, 4, 5, 6, 7]
    assert removable_states(keys, done, settings_in(tmp_path)) == [1, 2, 4, 5]
    assert removable_states(keys, [7, 4], settings_in(tmp_path)) == []
    latest = settings_in(tmp_path, checkpoint_period=None)
    assert removable_states(keys, done, latest) == [1, 2, 3, 4, 5]
    assert removable_states(keys, done, settings_in(tmp_path, state_retention="all")) == []
    traits = dataclasses.replace(keys.trainer_class.traits, is_remote=True)
    vars(keys)["trainer_class"] = type("Remote", (keys.trainer_class,), {"traits": traits})
    assert removable_states(keys, done, latest) == [], "a service has the weights"
    networks = resolve(NETWORKS, settings_in(tmp_path)).keys[0]
    assert removable_states(networks, done, latest) == []


@slow
def test_a_run_removes_states_and_stays_finished(run, tmp_path):
    assert removed(run) == [1, 2, 4]
    again = run_without_prefect(params(), settings_in(tmp_path), name="a")
    assert (again.computed, removed(again)) == (0, [1, 2, 4])
    everything = run_without_prefect(params(), settings_in(tmp_path / "all", state_retention="all"))
    assert removed(everything) == []
    assert (everything.states, everything.metrics) == (run.states, run.metrics)
    longer = run_without_prefect(params(7), settings_in(tmp_path), name="a")
    assert (longer.computed, removed(longer)) == (3, [1, 2, 4]), "both runs use the state after 5"
    verified = verify_run(run.run_id, settings_in(tmp_path))
    assert verified.is_sound
    assert verified.remade is not None
    assert verified.remade.record.iteration == 6
    assert "3 states were removed" in verified.removed[0]
    assert "stored state after 3 takes 1 iterations" in verified.removed[0]


@slow
def test_commands_name_the_missing_state_and_restore_computes_it(prefect_server, run, tmp_path):
    settings, changes = settings_in(tmp_path), {"grpo.clip_high": 0.3}
    missing = f"stored state after 0 takes 2 iterations: `ratchet restore {run.run_id} 2`"
    with pytest.raises(CheckPointNotFoundError, match=f"train main 2-3 reads .* {missing}"):
        verify_run(run.run_id, settings, stage="train:3")
    with pytest.raises(CheckPointNotFoundError, match=f"train main 2-3 reads .* {missing}"):
        fork_experiment(run.run_id, 2, changes, settings)
    resolve_fork(run.run_id, 3, changes, settings).check_stored_stages()
    folder = ["--runs-dir", settings.runs]
    assert CliRunner().invoke(app, ["restore", run.run_id, "2", *folder]).exit_code == 0
    assert removed(run) == [1, 4], "states in between go again"
    with pytest.raises(ParameterError, match="has removed no state after 2"):
        restored(run, 2)
    fork = fork_experiment(run.run_id, 2, changes, settings)
    assert removed(fork) == [1, 4], "the parent's states stay, and those of the fork's end"
    assert verify_run(run.run_id, settings, stage="train:3").is_sound
    tested = CliRunner().invoke(app, ["retest", run.run_id, "--no-progress", *folder])
    assert tested.exit_code == 0, tested.output
    (path,) = (tmp_path / "runs").glob("*retest*")
    texts = [event["message"] for event in RunFolder(path).read_events()]
    assert any(text.startswith("Not tested: 2 states were removed") for text in texts)
    manifest = RunFolder(path).manifest
    assert [r.iteration for r in manifest.stages if r.stage == "test"] == [0, 2, 3, 5, 6]


@slow
@pytest.mark.parametrize("mode", ["one_step_behind", "synchronous"])
def test_a_restored_state_has_the_removed_bytes(tmp_path, mode):
    """With rollouts within training stages too: a stage of two iterations stores none."""
    settings = settings_in(tmp_path, iterations_per_task=2, checkpoint_period=None)
    run = run_without_prefect(params(8, language={**CHOSEN["language"], "mode": mode}), settings)
    assert removed(run) == [2, 4]
    store = StageStore(settings.store_url)
    (key,) = (
        r.key
        for r in RunFolder(Path(run.folder)).manifest.stages
        if r.iteration == 4 and r.stage == "train"
    )
    assert restored(run, 4) == ["main"]
    assert store.verify(key) == []
    assert (store.open(key) / FILE).exists()


@slow
def test_other_code_restores_no_state(run, monkeypatch):
    take = LanguageTrainer._do_iteration

    def other(self, iteration):
        metrics = take(self, iteration)
        self.learner.model.parameters()[0].data.add_(1e-3)
        return metrics

    monkeypatch.setattr(LanguageTrainer, "_do_iteration", other)
    with pytest.raises(StoreError, match=r"train 1: .* with other bytes"):
        restored(run, 2)
    assert removed(run) == [1, 2, 4]


@slow
def test_arms_keep_the_states_that_others_use(tmp_path):
    """An arm that validates with other tests reads the states of the first, which has finished."""
    tasks = {**CHOSEN["language_task"], "num_validation": 4}
    arms = {"other": {"language.validate_every": 2}}
    run = run_without_prefect(params(language_task=tasks), settings_in(tmp_path), arms=arms)
    assert removed(run) == []
    assert "validate" in {r.stage for r in RunFolder(Path(run.folder)).manifest.stages}


@slow
def test_a_damaged_last_state_is_computed_from_the_one_before(run, tmp_path):
    store = StageStore(settings_in(tmp_path).store_url)
    records = RunFolder(Path(run.folder)).manifest.stages
    keys = {r.iteration: r.key for r in records if r.stage == "train"}
    (store.open(keys[6]) / FILE).write_bytes(b"")
    again = run_without_prefect(params(), settings_in(tmp_path), name="a")
    assert (again.computed, removed(again)) == (1, [1, 2, 4])
    for iteration in (5, 6):
        store.remove(keys[iteration])
    missing = f"stored state after 3 takes 1 iterations: `ratchet restore {run.run_id} 4`"
    with pytest.raises(CheckPointNotFoundError, match=f"train main 4-5 reads .* {missing}"):
        run_without_prefect(params(), settings_in(tmp_path), name="a")
    file = tmp_path / "a.yaml"
    file.write_text(json.dumps({**params(), "settings": settings_in(tmp_path).to_dict()}))
    planned = CliRunner().invoke(app, ["plan", str(file)])
    assert planned.exit_code == 2
    assert re.search(missing, planned.output)
    restored(run, 4)
    assert run_without_prefect(params(), settings_in(tmp_path), name="a").computed == 2


KILLED = """
import os, signal, sys
from flows.runs.without_prefect import run_without_prefect
from ratchet.store.local import LocalFolder
from tests.flows.test_removed_states import params, settings_in
from pathlib import Path

LocalFolder.delete_removed = lambda self, manifest: os.kill(os.getpid(), signal.SIGKILL)
run_without_prefect(params(), settings_in(Path(sys.argv[1])), name="a")
"""


@slow
def test_a_kill_between_commit_and_removal(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (folder,) = (tmp_path / "runs").glob("a-*")
    assert verify_run(folder.name, settings_in(tmp_path), remake=False).is_sound
    run = run_without_prefect(params(), settings_in(tmp_path), name="a")
    assert run.cached > 0
    assert removed(run) == [1, 2, 4]


@slow
def test_a_run_moves_without_its_removed_states(run, tmp_path):
    folder, file = settings_in(tmp_path).runs, tmp_path / "run.zip"
    packed = CliRunner().invoke(app, ["export", run.run_id, str(file), "--runs-dir", folder])
    assert packed.exit_code == 0, packed.output
    assert "Not in the file: 3 states were removed" in packed.output
    there = settings_in(tmp_path / "there")
    imported = import_run(file, there)
    assert removed(dataclasses.replace(run, folder=str(imported.folder.path))) == [1, 2, 4]
    restore_state(resolve_run(run.run_id, None, there.runs), 4)
    assert verify_run(run.run_id, there, stage="train:5").is_sound


@slow
def test_a_run_warns_once_if_its_states_do_not_fit(tmp_path, monkeypatch):
    needed = DiskEstimate(10, 6_000_000_000, 60_000_000_000, 1_000_000_000, "/disk")
    monkeypatch.setattr(setup, "estimate_disk", lambda experiment: needed)
    for _ in range(2):
        run = run_without_prefect(params(1), settings_in(tmp_path), name="a")
    events = [
        e["message"] for e in RunFolder(Path(run.folder)).read_events() if e["kind"] == "warning"
    ]
    (text,) = (text for text in events if "GB" in text)
    assert "10 states of about 6 GB need 60 GB, but 1 GB are free" in text
    assert "settings.state_retention=checkpoints" in text


@slow
def test_states_stay_if_runs_are_out_of_sight(tmp_path, caplog):
    store = StageStore(settings_in(tmp_path).store_url)
    (tmp_path / "gone").mkdir()
    note_user(store, tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    run = run_without_prefect(params(), settings_in(tmp_path), name="a")
    assert removed(run) == []
    (text,) = (text for text in caplog.messages if "No state is removed" in text)
    assert f"{tmp_path / 'gone'}" in text
