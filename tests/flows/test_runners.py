"""Runners: members in clusters and work pools give the same results as in one process."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import psutil
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import WorkPoolFilter, WorkPoolFilterName
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed

from flows import run_experiment, run_sweep, sweep_flow
from flows.process.environment import prepare_environment
from flows.runners import processes, work_pool
from flows.runners.factory import _in_thread, check_runner
from flows.sweep_flow import run_members
from flows.sweeps.members import resolve_sweep
from ratchet import lazy
from ratchet.errors import (
    DataError,
    MissingPackageError,
    ParameterError,
    StageFailedError,
    WorkerDiedError,
)
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.run_folder import RunFolder
from trainers.subprocess_worker import SubprocessWorker

SHARED = {"graph_isomorphism__dataset_seed": 0, "pretrain_agents": False}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"runner": "dask", "cluster_address": f"tcp://127.0.0.1:{free_port()}"},
            r"settings.cluster_address: no response from tcp://127.0.0.1:\d+ .*`dask scheduler`",
        ),
        (
            {"runner": "ray", "cluster_address": f"127.0.0.1:{free_port()}"},
            r"no response from 127.0.0.1:\d+ .*`ray start --head`.* or remove the address",
        ),
        ({"runner": "dask", "cluster_address": "lab"}, "got 'lab', expected HOST:PORT"),
        (
            {"runner": "processes", "cluster_address": "lab:1"},
            "settings.runner=processes, which has no cluster",
        ),
    ],
)
def test_an_unavailable_cluster_is_refused_immediately(settings, message):
    start = time.monotonic()
    with pytest.raises(ParameterError, match=message):
        check_runner(ExperimentSettings.from_dict(settings))
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("name", ["dask", "ray"])
def test_a_missing_package_is_refused_with_its_install_command(name, monkeypatch):
    monkeypatch.setattr(lazy, "is_installed", lambda package: False)
    with pytest.raises(MissingPackageError, match=rf"'{name}' needs prefect_{name}.*\[.*cluster"):
        check_runner(ExperimentSettings(runner=name))


def test_a_failed_sweep_cancels_running_members(monkeypatch):
    started, ended = [], []

    async def run(member, runner):
        started.append(member)
        try:
            await asyncio.sleep(60 if member else 0)
        except asyncio.CancelledError:
            ended.append(member)
            raise
        return {}

    def done(member, answer):
        raise DataError("no such metric")

    async def sweep():
        with pytest.raises(DataError, match="no such metric"):
            await sweep_flow.run_concurrently(range(5), done, SimpleNamespace(slots=2))
        assert (started, ended) == ([0, 1], [1]), "before the runner is closed"

    monkeypatch.setattr(sweep_flow, "_run", run)
    asyncio.run(sweep())


def test_each_lost_worker_of_a_member_gives_one_warning_with_its_attempt(caplog):
    class LosesWorkers:
        async def submit(self, request):
            raise WorkerDiedError(f"the worker of a {request['work']} was lost.")

    resolved = SimpleNamespace(
        settings=ExperimentSettings(retries=1),
        with_settings=lambda **_: SimpleNamespace(flow_parameters=dict),
    )
    member = SimpleNamespace(label="seed=3", experiment=resolved)
    submission = sweep_flow._Submission(member, LosesWorkers())
    for _ in range(2):
        with pytest.raises(WorkerDiedError):
            asyncio.run(submission.submit())
    lost = "member seed=3 lost its worker at attempt {}: the worker of a member was lost."
    assert [record.message for record in caplog.records] == [
        lost.format("1, retrying"),
        lost.format("2, no retries left"),
    ]


@pytest.mark.slow
def test_a_process_that_has_responded_is_not_terminated():
    finished, process = threading.Event(), SubprocessWorker("none", "none")

    def should_continue():  # called just after the response
        finished.set()
        return False

    processes._terminate_if_cancelled(process, finished, should_continue)
    assert not process.is_closed
    processes._terminate_if_cancelled(process, threading.Event(), lambda: False)
    assert process.is_closed


@pytest.mark.slow
def test_a_work_pool_does_not_run_an_entire_search_concurrently(lab):
    varies = {"rl.lr": {"kind": "uniform", "low": 0.1, "high": 0.2}}
    search = {"kind": "optuna", "parameters": varies, "metric": "train/norm", "num_trials": 9}
    settings = ExperimentSettings.from_dict(lab.settings(runner="work_pool"))
    base = HyperParameters.from_dict(lab.hyper_params(**SHARED), settings.base_dir)
    resolved = resolve_sweep(base, search, settings, None, name="tiny")
    with pytest.raises(ParameterError, match=r"got none .* Add settings.max_parallel=N"):
        asyncio.run(run_members(resolved, 1))


@pytest.fixture
def quiet(lab, monkeypatch):
    monkeypatch.setenv("TINY_LOG", str(lab.log))
    prepare_environment(lab.folder / "home")


@pytest.mark.slow
def test_members_of_a_work_pool_end_with_a_message_in_words(lab, quiet, monkeypatch):
    pool = f"pool-{lab.folder.name}"
    monkeypatch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value()))
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool]
        with subprocess.Popen(
            [*command, "--type", "process", "--install-policy", "never"],
            env=lab.child_environment(),
        ) as worker:
            results = sweep(lab, "work_pool", work_pool=pool)
            worker.terminate()
        messages = {
            run.name: run.state.message
            for run in client.read_flow_runs(
                work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))
            )
        }
    assert set(messages) == {each.run_id for each in results}
    assert all(re.fullmatch(r"Stages: \d+ computed, .*", text) for text in messages.values())
    assert [each.metrics["main"]["test"] for each in results]


def sweep(lab, runner, **settings):
    chosen = ExperimentSettings.from_dict(lab.settings(runner=runner, max_parallel=2, **settings))
    parameters = lab.hyper_params(**SHARED)
    return run_sweep(parameters, {"seed": [0, 1]}, chosen, name="tiny")


@pytest.mark.slow
@pytest.mark.parametrize(
    "runner",
    [
        pytest.param("dask", marks=pytest.mark.exhaustive),  # so is that of an external cluster
        pytest.param("ray", marks=pytest.mark.ray),
    ],
)
def test_a_member_whose_worker_is_killed_is_resumed_without_repeated_work(
    runner, lab, new_lab, quiet, monkeypatch
):
    once = lab.folder / "once"
    monkeypatch.setenv("RATCHET_FAULT", f"stage=train;iteration=6;kind=kill;once={once}")
    results = sweep(lab, runner, retries=1)
    assert once.exists()
    check_no_repeated_work(lab, new_lab(), results)


def check_no_repeated_work(lab, other, results):
    done = Counter(lab.done())
    assert done == {**{f"train {i}": 2 for i in range(7)}, "test test": 2}
    expected = sweep(other, "inline")
    assert [r.run_id for r in results] == [r.run_id for r in expected]
    assert [r.metrics for r in results] == [r.metrics for r in expected]
    weights = [lab.weights(result.to_dict()) for result in results]
    assert weights == [other.weights(result.to_dict()) for result in expected]


@contextmanager
def external_cluster():
    """Start a Dask cluster that the sweep does not configure; yield the settings that use it."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield {"cluster_address": cluster.scheduler_address}


@pytest.mark.slow
@pytest.mark.parametrize(
    "cluster", [pytest.param(nullcontext, marks=pytest.mark.exhaustive), external_cluster]
)
def test_a_member_whose_dask_worker_is_killed_is_resumed(
    cluster, lab, new_lab, quiet, monkeypatch, caplog
):
    """Kill a worker of the cluster during a stage, with the member's process."""
    go_on = lab.folder / "go_on"
    monkeypatch.setenv("TINY_HANG", "train 3")
    monkeypatch.setenv("TINY_GO_ON", str(go_on))
    with cluster() as settings, ThreadPoolExecutor(1) as beside:
        killed = beside.submit(kill_the_worker_of_a_member, lab, go_on)
        results = sweep(lab, "dask", retries=1, **(settings or {}))
        assert not killed.result().is_running()
    (warning,) = (each.message for each in caplog.records if "lost its" in each.message)
    assert warning.endswith(
        "lost its worker at attempt 1, retrying: a worker of the Dask cluster was terminated"
        " externally."
    )
    check_no_repeated_work(lab, new_lab(), results)


def kill_the_worker_of_a_member(lab, go_on):
    """Wait until both members train, kill the parent of one; return that member."""
    try:
        deadline = time.monotonic() + 300
        while Counter(lab.done())["train 2"] < 2:
            assert time.monotonic() < deadline, f"only {lab.done()} is done"
            time.sleep(0.1)
        children = psutil.Process().children(recursive=True)
        member = next(each for each in children if "flows.runners.worker" in each.cmdline())
        member.parent().kill()
        member.wait(240)
        return member
    finally:
        go_on.touch()


ARMS = {"fast": {"rl.lr": 1.0}, "other": {"seed": 5}, "zero": {"rl.lr": 0.1}}


def play_arms(lab, **settings):
    chosen = ExperimentSettings.from_dict(lab.settings(**settings))
    parameters = lab.hyper_params(**SHARED)
    return run_experiment(parameters, chosen, arms=ARMS, name="tiny").to_dict()


def stored_content(lab, result):
    """Return the content of a run's folder, without times."""
    folder = RunFolder(result["folder"])
    manifest = folder.manifest
    stages = [record.model_dump(exclude={"seconds"}) for record in manifest.stages]
    tables = [(t.arm, t.name, t.columns) for t in folder.read_tables()]
    ordered = [list(manifest.read_parameters.items()), list(manifest.dataset_hashes.items())]
    result = {name: result[name] for name in ("metrics", "states", "computed", "cached")}
    weights = [lab.weights(result, arm) for arm in result["states"]]
    return json.dumps([result, stages, tables, ordered, weights]), folder.read_metrics()


@pytest.mark.slow
def test_concurrent_and_sequential_arms_give_the_same_results(lab, new_lab, quiet, monkeypatch):
    """Also if a worker dies: a different worker computes the stage."""
    once = lab.folder / "once"
    before = psutil.Process().children(recursive=True)
    other = new_lab()
    expected = stored_content(other, play_arms(other))
    lab.log.unlink()
    monkeypatch.setenv("RATCHET_FAULT", f"stage=train;iteration=6;kind=kill;once={once}")
    result = play_arms(lab, runner="processes", max_parallel=2, retries=1)
    assert once.exists()
    assert stored_content(lab, result) == expected
    done = Counter(lab.done())
    assert done == {**{f"train {i}": 4 for i in range(7)}, "test test": 4}
    assert psutil.Process().children(recursive=True) == before


@pytest.mark.slow
def test_a_missing_work_pool_is_reported(lab, quiet):
    with pytest.raises((ParameterError, StageFailedError), match=r"has no 'nowhere'.*work-pool"):
        sweep(lab, "work_pool", work_pool="nowhere")


async def cancel_before(work, start):
    """Cancel a coroutine that waits for its start; then start it."""
    working = asyncio.create_task(work)
    await asyncio.sleep(0.01)
    working.cancel()
    await asyncio.sleep(0.01)
    start.set()
    with pytest.raises(asyncio.CancelledError):
        await working


def test_a_cluster_that_starts_during_a_cancellation_is_stopped():
    happened, may_start = [], threading.Event()

    @contextmanager
    def cluster():
        may_start.wait()
        happened.append("started")
        yield
        happened.append("ended")

    async def use():
        async with _in_thread(cluster()):
            happened.append("used")

    asyncio.run(cancel_before(use(), may_start))
    assert happened == ["started", "ended"]


def test_a_member_that_an_earlier_version_ran_is_refused_with_the_reason(prefect_server):
    @flow(name="a member")
    def member(): ...

    with get_client(sync_client=True) as client:
        run = client.create_flow_run(member, state=Completed(message="{}"))
    with pytest.raises(StageFailedError, match="has an earlier version of Ratchet"):
        asyncio.run(work_pool._result(run))


def test_a_flow_run_requested_during_a_cancellation_is_cancelled(monkeypatch):
    cancelled, may_start = [], asyncio.Event()

    async def start(*_, **__):
        await may_start.wait()
        return SimpleNamespace(id="the run")

    class Client:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

        async def set_flow_run_state(self, run, state):
            cancelled.append((run, state.name))

    monkeypatch.setattr(work_pool, "arun_deployment", start)
    monkeypatch.setattr(work_pool, "get_client", Client)
    pool = work_pool.WorkPool("deployment", 1, "pool")
    submission = pool.submit({"parameters": {"settings": {"run_id": "one"}}})
    asyncio.run(cancel_before(submission, may_start))
    assert cancelled == [("the run", "Cancelling")]
