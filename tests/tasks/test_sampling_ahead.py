"""The next rollouts are sampled while a state is written and stored; no result depends on it."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from contextlib import closing, contextmanager

import pytest

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import StoreError
from ratchet.store.claim import Claim
from ratchet.store.store import StageStore
from tasks.language.keys import LanguageArmKeys
from tasks.stages import background, decorator
from tasks.stages import session as session_module
from tasks.stages.driver import StageDriver, execute_stage, run_stages
from tasks.stages.families import make_keys, open_session, stage_functions
from tasks.stages.sequence import StoredStageLayout
from tasks.stages.undeclared_files import NOTED_FILE
from tests.tasks.test_language_phases import PARAMETERS as PHASED
from trainers.interruption import StageInterrupted
from trainers.language import trainer as language_trainer
from trainers.language.state import LanguageState
from trainers.language.trainer import LanguageTrainer

SECONDS = 240.0
SMALL = {
    "scenario": "language_task",
    "dataset": "reverse",
    "trainer": "grpo",
    "rl": {"num_iterations": 4},
    "language_task": {"num_train": 8, "num_test": 2, "reverse": {"length": 3, "num_symbols": 6}},
    "agents": {
        "_default": {
            "max_tokens": 3,
            "small_model": {"layers": 1, "d_model": 8, "heads": 2, "context_length": 32},
            "warm_up": {"num_steps": 1},
        }
    },
    "language": {"tasks_per_step": 4, "group_size": 4, "optimizer": {"lr": 0.03}},
}
VALIDATED = {
    **SMALL,
    "language": {**SMALL["language"], "validate_every": 2},
    "language_task": {**SMALL["language_task"], "num_validation": 2},
    "callbacks": [{"name": "keep_best", "metric": "actor/loss"}],
}


class Clock:
    """The module ``time`` with a clock that only a test moves."""

    now = 0.0

    def monotonic(self):
        return self.now

    def __getattr__(self, name):
        return getattr(time, name)


class Runs:
    """Runs of an experiment, each with a new store."""

    def __init__(self, folder, monkeypatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.number = 0

    def session(self, parameters, **settings):
        """Return a session with a new store."""
        self.number += 1
        choices = {"iterations_per_task": 1, "retry_delay_seconds": 0, **settings}
        home = str(self.folder / str(self.number))
        plain = ExperimentSettings(home=home, progress="none", tracking=False, **choices)
        store = StageStore(plain.store_url, reserve_bytes=0)
        base_dir = plain.base_dir
        hyper_params = HyperParameters.from_dict(parameters, base_dir)
        keys = make_keys(f"arm_{self.number}", hyper_params, base_dir=base_dir)
        return open_session(keys, plain, store)

    def outputs(self, parameters, **settings):
        """Return the files and metrics of all stages, by name and iteration."""
        with closing(self.session(parameters, **settings)) as session:
            return outputs_of(session, run_stages(session))

    def without(self, parameters, **settings):
        """Return the same of a run that does not sample ahead."""
        with self.monkeypatch.context() as patch:
            patch.setattr(LanguageArmKeys, "rollouts_during_write", lambda *_: None)
            return self.outputs(parameters, **settings)


def outputs_of(session, outcomes):
    """Return the files and metrics of stages, by name and iteration."""
    return {
        (each.call.name, each.call.iteration): (
            digests_of(session.store.open(each.call.key)),
            [
                {n: v for n, v in point.values.items() if "second" not in n and "timing" not in n}
                for point in each.manifest.metrics
            ],
        )
        for each in outcomes
    }


def digests_of(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }


@pytest.fixture
def runs(tmp_path, monkeypatch):
    return Runs(tmp_path, monkeypatch)


@pytest.fixture
def sampled(monkeypatch):
    """Return the iterations that are sampled: with whether each was sampled ahead."""
    iterations = []
    play = LanguageTrainer.play_rollouts

    def note(self, iteration, **cursor):
        iterations.append((iteration, threading.current_thread().name.startswith("background")))
        return play(self, iteration, **cursor)

    monkeypatch.setattr(LanguageTrainer, "play_rollouts", note)
    return iterations


@pytest.fixture
def overlapping(monkeypatch, sampled):
    """Let each sampling ahead end after the state is written, which starts after sampling has."""
    started, written = threading.Event(), threading.Event()
    play, save = LanguageTrainer._play_rollouts, LanguageTrainer.save_state
    is_overlapped = []

    def wait_for_write(self, iteration, cursor):
        rollouts = play(self, iteration, cursor)
        if sampled[-1][1]:
            written.clear()
            started.set()
            assert written.wait(SECONDS)
        return rollouts

    def wait_for_sampling(self, folder, key):
        if background._latest is not None:
            assert started.wait(SECONDS)
            started.clear()
            is_overlapped.append(not background._latest.done())
        save(self, folder, key)
        written.set()

    monkeypatch.setattr(LanguageTrainer, "_play_rollouts", wait_for_write)
    monkeypatch.setattr(LanguageTrainer, "save_state", wait_for_sampling)
    return is_overlapped


@pytest.mark.parametrize(("parameters", "per_task"), [(SMALL, 1), (SMALL, 2), (VALIDATED, 1)])
def test_a_run_has_the_bits_of_one_that_does_not_sample_ahead(
    runs, overlapping, sampled, parameters, per_task
):
    expected = runs.without(parameters, iterations_per_task=per_task)
    assert not any(ahead for _, ahead in sampled)
    sampled.clear()
    assert runs.outputs(parameters, iterations_per_task=per_task) == expected
    ahead = [iteration for iteration, is_ahead in sampled if is_ahead]
    assert ahead == list(range(per_task, 4, per_task))
    assert overlapping == [True] * len(ahead)
    assert [iteration for iteration, _ in sampled] == [0, 1, 2, 3], "each must be sampled once"


@pytest.mark.slow
def test_a_stopped_run_samples_no_further_rollouts(runs, sampled):
    stopping = {"name": "early_stopping", "metric": "training/num_updates", "patience": 1}
    stopped = {**SMALL, "callbacks": [stopping]}
    expected = runs.without(stopped)
    sampled.clear()
    assert runs.outputs(stopped) == expected
    assert sampled == [(0, False), (1, True)]


def test_phases_sample_ahead_except_at_their_ends_and_with_earlier_selves(runs, sampled):
    expected = runs.without(PHASED)
    sampled.clear()
    assert runs.outputs(PHASED) == expected
    assert [iteration for iteration, ahead in sampled if ahead] == [1]
    assert [iteration for iteration, _ in sampled] == [0, 1, 2, 3, 4, 5]


def test_a_run_that_recomputes_every_stage_has_the_same_bits(runs, sampled):
    with closing(runs.session(SMALL)) as session:
        first = outputs_of(session, run_stages(session))
        sampled.clear()
        outcomes, recomputed = [], set()
        driver = StageDriver(session, execute_stage, outcomes.append, recomputed)
        layout = StoredStageLayout(session.store, session.settings, recomputed)
        asyncio.run(driver.run(session.keys.stages(layout)))
        assert not any(each.hit for each in outcomes)
        assert outputs_of(session, outcomes) == first
    assert sampled == [(0, False), (1, True), (2, True), (3, True)]


def test_a_stage_on_its_own_samples_nothing_ahead(runs, sampled, tmp_path):
    with closing(runs.session(SMALL)) as session:
        run_stages(session)
    sampled.clear()
    settings, keys, store = session.settings, session.keys, session.store
    with closing(open_session(keys, settings, store)) as session:
        store.remove(keys.rollouts(2).key)
        stage_functions(keys)["train"].work(keys.train(1, 2), tmp_path, session)
    assert sampled == []


@pytest.mark.parametrize("per_task", [1, 2])
@pytest.mark.parametrize("fails", ["commit", "save"])
def test_a_failed_write_discards_what_was_sampled_and_is_retried(
    runs, sampled, monkeypatch, fails, per_task
):
    expected = runs.without(SMALL, iterations_per_task=per_task)
    sampled.clear()
    failures = []
    owner, name = (Claim, "commit") if fails == "commit" else (LanguageState, "save")
    write = getattr(owner, name)

    def fail_once(self, *arguments, **values):
        if not failures and background._latest is not None:
            failures.append(self)
            raise StoreError("the disk is full")
        return write(self, *arguments, **values)

    monkeypatch.setattr(owner, name, fail_once)
    assert runs.outputs(SMALL, iterations_per_task=per_task, retries=1) == expected
    assert failures
    repeated = [0, 1, 1, 2, 3] if per_task == 1 else [0, 1, 2, 0, 1, 2, 3]
    assert [iteration for iteration, _ in sampled] == repeated


def test_rollouts_that_could_not_be_sampled_ahead_are_sampled_by_their_stage(
    runs, sampled, monkeypatch, caplog
):
    expected = runs.without(SMALL)
    sampled.clear()
    play = LanguageTrainer.play_rollouts
    failures = []

    def fail_once(self, iteration, **cursor):
        rollouts = play(self, iteration, **cursor)
        if iteration == 2 and not failures:
            failures.append(iteration)
            raise OSError("the engine has ended")
        return rollouts

    monkeypatch.setattr(LanguageTrainer, "play_rollouts", fail_once)
    assert runs.outputs(SMALL, retries=0) == expected
    assert sampled == [(0, False), (1, True), (2, True), (2, False), (3, False)]
    (record,) = [each for each in caplog.records if "the engine has ended" in each.message]
    assert "computes the result again" in record.message


def test_custom_evaluators_may_have_objects_of_one_thread(runs, sampled, folder):
    (folder / "mine.py").write_text("def reward(task, answer, metadata): return len(answer) / 1")
    settings = {"base_dir": str(folder), "retries": 0}
    expected = runs.without(EVALUATED, **settings)
    sampled.clear()
    (folder / "mine.py").write_text(CONNECTED)
    found = runs.outputs(EVALUATED, **settings)
    assert all(found["rollouts", number] == expected["rollouts", number] for number in range(4))
    assert sampled == [(0, False), (1, True), (1, False), (2, False), (3, False)]


def test_sampling_ahead_ends_with_the_session(runs, monkeypatch):
    started, ended = threading.Event(), []
    play = LanguageTrainer.play_rollouts

    def play_forever(self, iteration, **cursor):
        if iteration == 0:
            return play(self, iteration, **cursor)
        try:
            started.set()
            while True:
                threading.Event().wait(0.001)
        except BaseException as error:
            ended.append(error)
            raise

    async def interrupt(session):
        driver = StageDriver(session, execute_stage, lambda _: None)
        layout = StoredStageLayout(session.store, session.settings)
        run = asyncio.ensure_future(driver.run(session.keys.stages(layout)))
        assert await asyncio.to_thread(started.wait, SECONDS)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    monkeypatch.setattr(LanguageTrainer, "play_rollouts", play_forever)
    with closing(runs.session(SMALL)) as session:
        asyncio.run(interrupt(session))
    assert [type(error) for error in ended] == [StageInterrupted]
    monkeypatch.setattr(LanguageTrainer, "play_rollouts", play)
    assert runs.outputs(SMALL), "the next run in this process must not wait"


def test_arms_in_one_process_compute_one_at_a_time(runs, sampled, monkeypatch):
    others = [{**SMALL, "seed": seed} for seed in (1, 2, 3)]
    expected = [runs.without(each) for each in others]
    sampled.clear()
    is_computing = threading.Lock()
    seeded = language_trainer.seeded_globals

    @contextmanager
    def alone(seed):
        assert is_computing.acquire(blocking=False), "two computations use the global generators"
        with seeded(seed):
            yield
        is_computing.release()

    async def run(session):
        outcomes = []
        layout = StoredStageLayout(session.store, session.settings)
        driver = StageDriver(session, execute_stage, outcomes.append)
        await driver.run(session.keys.stages(layout))
        return outputs_of(session, outcomes)

    async def run_all(sessions):
        return await asyncio.gather(*map(run, sessions))

    monkeypatch.setattr(language_trainer, "seeded_globals", alone)
    sessions = [runs.session(each) for each in others]
    try:
        assert asyncio.run(run_all(sessions)) == expected
    finally:
        for session in sessions:
            session.close()
    assert sum(ahead for _, ahead in sampled) == 9


CUSTOM = """
from ratchet.language_models.engines.in_process import InProcessEngine
from trainers.callbacks.base import Callback
from trainers.language.grpo import GrpoTrainer

class Mine(GrpoTrainer):
    pass

class Engine(InProcessEngine):
    pass

class Watching(Callback):
    def after_iteration(self, iteration, metrics):
        pass
"""
EVALUATOR = """
import random
from pathlib import Path
import numpy as np
import torch

HERE = Path(__file__).parent

def reward(task, answer, metadata):
    bonus = sum(float(path.read_text()) for path in HERE.glob("*.bonus"))
    return bonus * (len(answer) + random.random() + np.random.rand() + float(torch.rand(())))
"""
CONNECTED = """
import functools
import sqlite3

@functools.cache
def connection():
    return sqlite3.connect(":memory:")

def reward(task, answer, metadata):
    return float(connection().execute("select ?", (len(answer),)).fetchone()[0])
"""
EVALUATED = {**SMALL, "language_task": {**SMALL["language_task"], "evaluator": "mine.py:reward"}}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "mine.py").write_text(EVALUATOR)
    (folder / "half.bonus").write_text("0.5")
    return folder


def test_stages_have_the_time_of_what_was_computed_ahead_for_them(runs, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(session_module, "time", clock)
    monkeypatch.setattr(decorator, "time", clock)
    play = LanguageTrainer.play_rollouts

    def play_for_a_minute(self, iteration, **cursor):
        clock.now += 60.0
        return play(self, iteration, **cursor)

    monkeypatch.setattr(LanguageTrainer, "play_rollouts", play_for_a_minute)
    with closing(runs.session(SMALL)) as session:
        seconds = {(o.call.name, o.call.iteration): o.manifest.seconds for o in run_stages(session)}
    assert [seconds["rollouts", iteration] for iteration in range(4)] == [60.0] * 4


@pytest.mark.parametrize("per_task", [1, 2])
def test_custom_evaluators_sample_ahead_and_their_files_are_noted_for_the_right_stage(
    runs, overlapping, sampled, folder, per_task
):
    settings = {"base_dir": str(folder), "iterations_per_task": per_task}
    expected = runs.without(EVALUATED, **settings)
    sampled.clear()
    found = runs.outputs(EVALUATED, **settings)
    assert found == expected
    assert [iteration for iteration, ahead in sampled if ahead] == list(
        range(per_task, 4, per_task)
    )
    assert all(overlapping)
    noting = {name for name, (files, _) in found.items() if NOTED_FILE in files}
    rollouts = {("rollouts", number) for number in range(4)}
    trained = {("train", 2), ("train", 4)}
    assert noting - {("test", 4)} == (rollouts if per_task == 1 else trained)


@pytest.mark.parametrize(
    "changes",
    [
        {"language": {**SMALL["language"], "mode": "one_step_behind"}},
        {"language": {**SMALL["language"], "train_service": {"world_size": 2}}},
        {
            "trainer": "remote_grpo",
            "language": {**SMALL["language"], "train_service": {"backend": "ratchet"}},
        },
        {"trainer": "mine.py:Mine"},
        {"callbacks": [{"name": "mine.py:Watching"}]},
        {"language": {**SMALL["language"], "engine": "mine.py:Engine"}},
    ],
    ids=[
        "one_step_behind",
        "ranks",
        "remote",
        "custom trainer",
        "custom callback",
        "custom engine",
    ],
)
def test_other_experiments_do_not_sample_ahead(tmp_path, changes):
    (tmp_path / "mine.py").write_text(CUSTOM)
    hyper_params = HyperParameters.from_dict({**SMALL, **changes}, tmp_path)
    keys = make_keys("main", hyper_params, base_dir=str(tmp_path))
    assert keys.rollouts_during_write(keys.train(0, 1)) is None
    plain = make_keys("main", HyperParameters(**SMALL))
    rollouts = plain.rollouts_during_write(plain.train(0, 1))
    assert rollouts is not None
    assert rollouts.key == plain.rollouts(1).key
    assert plain.rollouts_during_write(plain.train(3, 4)) is None, "no iteration follows"
