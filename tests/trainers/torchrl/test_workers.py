"""Worker processes end with their trainer, and a lost one is named within seconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from ratchet.errors import ParameterError, WorkerDiedError
from trainers.interruption import StageInterrupted, interrupt_thread
from trainers.torchrl.workers import run_with_workers

SPAWN = multiprocessing.get_context("spawn")
MANY_SECONDS = 600.0
FEW_SECONDS = 20.0


def started_worker(started):
    """Start a worker that would run for long."""
    process = SPAWN.Process(target=time.sleep, args=(MANY_SECONDS,))
    process.start()
    started.append(process)
    return process


def wait_forever():
    """Wait like the library for a message that no process sends."""
    SPAWN.Queue().get()


@pytest.mark.slow
def test_workers_that_were_started_are_returned_and_their_death_is_named():
    started = []
    result, workers = run_with_workers(lambda: started_worker(started).pid, ())
    (worker,) = workers
    assert worker.pid == result

    def kill_and_wait():
        os.kill(worker.pid, signal.SIGKILL)
        wait_forever()

    start = time.monotonic()
    with pytest.raises(WorkerDiedError, match=rf"process {worker.pid}\) ended with SIGKILL"):
        run_with_workers(kill_and_wait, workers)
    assert time.monotonic() - start < FEW_SECONDS


@pytest.mark.slow
def test_the_death_of_a_worker_that_has_just_started_is_named():
    def start_and_kill():
        worker = started_worker([])
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()  # from now on, multiprocessing.active_children() omits it
        wait_forever()

    with pytest.raises(WorkerDiedError, match="ended with SIGKILL"):
        run_with_workers(start_and_kill, ())


@pytest.mark.slow
def test_the_death_of_a_worker_at_the_end_of_work_is_named_by_the_next():
    def start_and_kill():
        worker = started_worker([])
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()

    _, workers = run_with_workers(start_and_kill, ())
    with pytest.raises(WorkerDiedError, match="ended with SIGKILL"):
        run_with_workers(wait_forever, workers)


def test_an_error_of_the_library_about_a_dead_worker_names_it():
    _, workers = run_with_workers(lambda: started_worker([]).pid, ())
    (worker,) = workers

    def kill_and_fail():
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        raise RuntimeError("at least one process failed")

    with pytest.raises(WorkerDiedError, match=f"process {worker.pid}") as caught:
        run_with_workers(kill_and_fail, workers)
    assert "at least one process failed" in str(caught.value.__cause__)


def test_workers_of_work_that_fails_are_ended():
    started = []

    def fail():
        started_worker(started)
        raise ParameterError("no such option")

    with pytest.raises(ParameterError, match="no such option"):
        run_with_workers(fail, ())
    assert not started[0].is_alive()


@pytest.mark.slow
def test_an_interrupt_ends_work_that_waits_for_a_worker():
    started, waits = [], threading.Event()

    def start_and_wait():
        started_worker(started)
        waits.set()
        wait_forever()

    def run():
        identity.append(threading.get_ident())
        return run_with_workers(start_and_wait, ())

    identity = []
    with ThreadPoolExecutor(1) as executor:
        outcome = executor.submit(run)
        assert waits.wait(FEW_SECONDS)
        interrupt_thread(identity[0])
        with pytest.raises(StageInterrupted):
            outcome.result(FEW_SECONDS)
    assert not started[0].is_alive()


def test_a_thread_that_waits_in_the_library_does_not_block_profilers():
    subprocess.run([sys.executable, "-c", PROFILED], timeout=300, check=True)


PROFILED = """
import os, sys, threading
from trainers.interruption import interrupt_thread
from trainers.torchrl import workers

workers._SECONDS_TO_END = 0.0
stage = threading.get_ident()

def wait_forever():
    threading.Timer(0.1, interrupt_thread, [stage]).start()
    os.read(os.pipe()[0], 1)

try:
    workers.run_with_workers(wait_forever, ())
except BaseException as error:
    assert type(error).__name__ == "StageInterrupted", error
sys.setprofile(lambda *_: None)
(lambda: None)()
sys.setprofile(None)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["multi_sync", "multi_async"])
def test_a_killed_worker_of_a_collector_fails_the_attempt_and_a_retry_starts_anew(small, kind):
    trainer = small.make(
        "ppo",
        torchrl__choices={"collector": kind},
        collector__num_workers=2,
        trainer__weight_update_map={"policy": "loss_module.actor_network"},
    )
    trainer.initial_state()
    trainer.run_iterations(0, 1)
    state = trainer.state
    victim, *_ = trainer._workers
    library = trainer.torchrl_trainer
    library.register_op("post_steps", lambda: os.kill(victim.pid, signal.SIGKILL))
    with pytest.raises(WorkerDiedError, match=f"process {victim.pid}"):
        trainer.run_iterations(1, 4)
    assert not multiprocessing.active_children()
    trainer.state = state
    assert trainer.torchrl_trainer is not library
    assert len(trainer.run_iterations(1, 2)) == 1
    trainer.close()
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_trainer_that_cannot_be_built_leaves_no_workers(small):
    trainer = small.make(
        "ppo",
        torchrl__choices={"collector": "multi_sync"},
        collector__num_workers=2,
        trainer__weight_update_map={"policy": "loss_module.actor_network", "other": "loss_module"},
    )
    with pytest.raises(ParameterError, match="weight_update_map does not match"):
        trainer.initial_state()
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_workers_end_with_a_process_that_does_not_close_its_trainer(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(Path(__file__).with_name("small_trainers.py"))]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    (line,) = (line for line in run.stdout.splitlines() if line.startswith("workers "))
    pids = [int(pid) for pid in line.split()[1:]]
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


SCRIPT = """
import multiprocessing, runpy, sys

if __name__ == "__main__":
    small = runpy.run_path(sys.argv[1])
    trainer = small["make"](
        "ppo",
        torchrl__choices={"collector": "multi_sync"},
        collector__num_workers=2,
        trainer__weight_update_map={"policy": "loss_module.actor_network"},
    )
    trainer.initial_state()
    print("workers", *(process.pid for process in multiprocessing.active_children()))
"""
