"""``ratchet doctor`` detects injected faults and prints the commands that fix them."""

from __future__ import annotations

import contextlib
import email.utils
import errno
import fcntl
import importlib.metadata
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from typer.testing import CliRunner

from flows.cli.doctor import CHECKS, all_checks
from flows.cli.main import app
from flows.process.checks import machine, runs, servers
from flows.process.checks.base import Check, CheckResult, Installation

BAD, WARNING, GOOD = CheckResult.BAD, CheckResult.WARNING, CheckResult.GOOD
_VARIABLES = (
    *("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"),
    *("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "MLFLOW_TRACKING_URI"),
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION",
)


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return Installation(tmp_path / "home", tmp_path / "runs")


def one(checks: Iterator[Check], verdict: CheckResult, *words: str) -> Check:
    """Return the only check with this verdict; its details contain the words and a command."""
    found = [check for check in checks if check.verdict is verdict]
    assert len(found) == 1, found
    for word in words:
        assert word in found[0].details, found[0].details
    if verdict is not GOOD:
        assert "`" in found[0].details or "pip install" in found[0].details, "no command"
    return found[0]


def test_a_good_machine_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["doctor", "--home", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "fastapi" in result.stdout
    assert "writable, locks work" in result.stdout
    assert list(tmp_path.iterdir()) == [], "checks write no files"
    assert len(set(CHECKS)) == len(CHECKS)


@pytest.mark.parametrize(
    ("package", "found"),
    [("fastapi", "0.155.0"), ("fastapi", "0.151.0"), ("sqlalchemy", "2.1.0"), ("torch", "2.14.0")],
)
def test_a_wrong_version_is_reported_with_the_command(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, package: str, found: str
) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: found if name == package else real(name)
    )
    check = one(
        machine.versions(installation), BAD, f"{found}, required", f"pip install '{package}"
    )
    assert check.subject == package


def test_missing_and_incompatible_packages_are_reported(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "openai":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    one(machine.versions(installation), BAD, "missing: pip install 'openai")
    monkeypatch.setattr(machine, "is_installed", lambda name: name == "torchvision")
    one(machine.incompatible_packages(installation), WARNING, "`pip uninstall torchvision`")


def test_unwritable_storage_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    one(iter([machine.storage("home", file / "below")]), BAD, "is not writable", "chmod")
    assert machine.storage("home", tmp_path / "new" / "folder").verdict is GOOD


def test_storage_without_locks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    check = machine.storage("home", tmp_path)
    one(iter([check]), BAD, "cannot be locked", "settings.home=FOLDER")


@pytest.mark.parametrize(("free", "verdict"), [(10 * 2**20, BAD), (2**30, WARNING)])
def test_a_full_disk_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, verdict: CheckResult
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
    one(iter([machine.storage("home", tmp_path)]), verdict, "free", "`ratchet gc`")


def test_clock_skew_is_reported(
    tmp_path: Path, installation: Installation, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now() + 100)
        one(iter([machine.storage("home", tmp_path)]), WARNING, "-100 s off", "timedatectl")
    url, _ = server({"/health": (200, "true")}, ahead=-300.0)
    monkeypatch.setenv("PREFECT_API_URL", url)
    one(servers.prefect(installation), WARNING, "s off this machine's", "timedatectl")
    for seconds in (-2.0, 0.0, 2.0):
        url, _ = server({"/health": (200, "true")}, ahead=seconds)
        monkeypatch.setenv("PREFECT_API_URL", url)
        assert [check.verdict for check in servers.prefect(installation)] == [GOOD]


def test_an_unreadable_store_url_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Installation(tmp_path, tmp_path, "nonsense://bucket/store")
    check = one(machine.folders(wrong), BAD, "nonsense", "settings.store=URL")
    assert check.subject == "store"
    there = Installation(tmp_path, tmp_path, "memory://doctor/store")
    assert [check.verdict for check in machine.folders(there)] == [GOOD] * 3
    filesystem = fsspec.filesystem("memory")
    assert filesystem.find("/doctor") == [], "checks write no objects"
    monkeypatch.setattr("ratchet.store.remote.objects_for", lambda filesystem: None)
    assert [check.verdict for check in machine.folders(there)] == [GOOD, GOOD, WARNING]
    assert filesystem.find("/doctor") == []


def test_an_unresponsive_server_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    result = CliRunner().invoke(app, ["doctor", "--home", str(tmp_path)])
    assert result.exit_code == 1
    assert "does not respond" in result.stdout
    assert "`ratchet up`" in result.stdout
    assert "`unset PREFECT_API_URL`" in result.stdout


Server = Callable[..., tuple[str, list[str]]]


@pytest.fixture
def server() -> Iterator[Server]:
    """Start servers with responses by path, or one for all; each with its list of requests."""
    started = []

    def start(
        pages: int | dict[str, tuple[int, str]], *, ahead: float = 0.0
    ) -> tuple[str, list[str]]:
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                status, text = (
                    (pages, "") if isinstance(pages, int) else pages.get(self.path, (404, ""))
                )
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def date_time_string(self, timestamp: float | None = None) -> str:
                return email.utils.formatdate(time.time() + ahead, usegmt=True)

            def log_message(self, *_: object) -> None:
                pass

        made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        started.append(made)
        return f"http://127.0.0.1:{made.server_port}", asked

    yield start
    for made in started:
        made.shutdown()
        made.server_close()


def test_a_ui_that_queries_a_different_server_is_reported(
    installation: Installation, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: dict[str, tuple[int, str]] = {}
    url, _ = server(pages)
    monkeypatch.setenv("PREFECT_API_URL", f"{url}/api")
    pages["/ui-settings"] = 200, json.dumps({"api_url": "http://127.0.0.1:4200/api"})
    one(servers.prefect_ui(installation), BAD, "4200", f"PREFECT_SERVER_UI_API_URL={url}/api")
    for same in (f"{url}/api", "/api", f"{url}/api".replace("127.0.0.1", "localhost")):
        pages["/ui-settings"] = 200, json.dumps({"api_url": same})
        assert list(servers.prefect_ui(installation)) == []


def test_a_server_with_a_password_or_a_different_version_is_reported(
    installation: Installation, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = server({"/api/admin/version": (401, "")})
    monkeypatch.setenv("PREFECT_API_URL", f"{url}/api")
    one(
        servers.prefect_access(installation), BAD, "requires a password", "PREFECT_API_AUTH_STRING="
    )
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "me:secret")
    check = one(servers.prefect_access(installation), BAD, "rejects PREFECT_API_AUTH_STRING")
    assert "secret" not in check.details
    url, _ = server({"/api/admin/version": (200, '"3.0.1"')})
    monkeypatch.setenv("PREFECT_API_URL", f"{url}/api")
    one(servers.prefect_access(installation), WARNING, "3.0.1", "`pip install 'prefect==3.0.1'`")


def test_a_server_that_denies_access_to_its_runs_is_reported(
    installation: Installation, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    url, _ = server({"/api/health": (200, "true")})
    monkeypatch.setenv("PREFECT_API_URL", f"{url}/api")
    with temporary_settings({PREFECT_API_URL: f"{url}/api"}):  # Prefect may have cached them
        one(runs.orphaned_flow_runs(installation), BAD, url, "501", "PREFECT_API_AUTH_STRING")
        one(runs.dead_scheduler(installation), BAD, url, "501", "PREFECT_API_AUTH_STRING")


def test_an_invalid_address_is_reported_and_an_invalid_clock_ignored(
    installation: Installation, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "nonsense")
    one(servers.prefect(installation), BAD, "nonsense does not respond", "unknown url type")
    monkeypatch.setattr(email.utils, "formatdate", lambda *_, **__: "noon")
    url, _ = server({"/health": (200, "true")})
    monkeypatch.setenv("PREFECT_API_URL", url)
    assert [check.verdict for check in servers.prefect(installation)] == [GOOD]
    assert list(servers.prefect_ui(installation)) == []


def test_settings_that_prevent_a_temporary_server_are_reported(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [check.verdict for check in servers.prefect(installation)] == [GOOD]
    name = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"
    monkeypatch.setenv(name, "5")
    one(servers.prefect(installation), WARNING, "5 s", f"`unset {name}`")
    monkeypatch.setenv("PREFECT_SERVER_ALLOW_EPHEMERAL_MODE", "false")
    one(servers.prefect(installation), BAD, "`unset PREFECT_SERVER_ALLOW_EPHEMERAL_MODE`")


@pytest.mark.parametrize(("status", "verdict"), [(401, GOOD), (404, GOOD), (502, BAD)])
def test_an_mlflow_behind_a_proxy_may_deny_access_but_must_respond(
    server: Server,
    installation: Installation,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    verdict: CheckResult,
) -> None:
    url, _ = server(status)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    (check,) = (c for c in all_checks(installation) if url in c.details)
    assert check.verdict is verdict, check.details
    assert str(status) in check.details


def test_mlflow_is_reported_with_its_page_for_model_training(
    server: Server, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = server(200)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    one(servers.mlflow(installation), GOOD, f"{url}/#/experiments?workflowType=machine_learning")


@pytest.mark.parametrize("uri", ["file:///tmp/mlruns", "./mlruns"])
def test_an_mlflow_folder_of_files_is_reported(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    one(servers.mlflow(installation), BAD, uri, "`export MLFLOW_TRACKING_URI=sqlite:///")


def test_mlflow_pickles_are_reported(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "true")
    one(servers.mlflow(installation), WARNING, "`unset MLFLOW_ALLOW_PICKLE_DESERIALIZATION`")


def inject_orphaned_runs(patch: pytest.MonkeyPatch, lost: Sequence[SimpleNamespace]) -> None:
    """Inject orphaned flow runs, and prevent Prefect's client from starting a server."""
    import prefect.client.orchestration

    from flows.process import flow_runs

    no_client = contextlib.nullcontext()
    patch.setattr(prefect.client.orchestration, "get_client", lambda **_: no_client)
    patch.setattr(flow_runs, "orphaned_flow_runs", lambda *_, **__: lost)


def test_prefects_health_is_queried_once(
    server: Server, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked = server(200)
    monkeypatch.setenv("PREFECT_API_URL", f"{url}/api")
    inject_orphaned_runs(monkeypatch, ())
    monkeypatch.setattr(runs, "_unscheduled_deployments", lambda: [])
    monkeypatch.setattr(runs, "_outdated_deployments", lambda _: [])
    assert {c.subject for c in all_checks(installation)} >= {"prefect", "threads"}
    assert asked.count("/api/health") == 1


def test_a_flow_run_without_a_process_is_reported(
    server: Server, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = server(200)
    monkeypatch.setenv("PREFECT_API_URL", f"{url}/api")
    inject_orphaned_runs(monkeypatch, [SimpleNamespace(name="nip-1", state_name="Running")])
    one(
        runs.orphaned_flow_runs(installation),
        WARNING,
        "its process or worker is gone",
        "`ratchet down`",
    )


def test_thread_oversubscription_is_reported(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    one(machine.threads(installation), WARNING, "8 per process", "`export OMP_NUM_THREADS=1`")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert [check.verdict for check in machine.threads(installation)] == [GOOD]


def test_the_isolation_of_tested_programs_is_reported(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ratchet.scenarios.sandbox import programs as sandbox

    def check(isolation: sandbox.SandboxIsolation) -> Check:
        monkeypatch.setattr(sandbox, "sandbox_isolation", lambda: isolation)
        (found,) = machine.sandbox(installation)
        return found

    plain = check(sandbox.SandboxIsolation((), landlock=5, seccomp=True, unprivileged=True))
    assert plain.verdict is GOOD
    assert plain.details == "seccomp, Landlock 5, namespaces: none allowed"
    weak = check(sandbox.SandboxIsolation((), landlock=0, seccomp=False, unprivileged=True))
    assert weak.verdict is WARNING
    assert "using the network or making empty files" in weak.details


@pytest.mark.slow
def test_deployments_without_a_scheduler_and_of_earlier_versions_are_reported(
    prefect_server: None, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests' server has no scheduler, like a server whose scheduler has died."""
    from datetime import timedelta

    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import IntervalSchedule
    from prefect.settings import PREFECT_API_URL

    url = str(PREFECT_API_URL.value())
    monkeypatch.setenv("PREFECT_API_URL", url)
    every_hour = IntervalSchedule(interval=timedelta(hours=1))
    with get_client(sync_client=True) as client:
        flow_id = client.create_flow_from_name("doctored")
        schedule = DeploymentScheduleCreate(schedule=every_hour, active=True)
        ours = "flows.deployed.experiment_from_file"
        form = {"properties": {"file": {}, "iterations": {}, "iteration_count": {}}}
        options: dict[str, Any] = {"schedules": [schedule], "parameter_openapi_schema": form}
        made = [
            client.create_deployment(flow_id, name, entrypoint=entrypoint, **options)
            for name, entrypoint in (("nightly", ours), ("others", "their.py:flow"))
        ]
    try:
        assert list(runs.dead_scheduler(installation)) == [], (
            "the scheduler may not have processed it yet"
        )
        monkeypatch.setattr(runs, "_NEW_DEPLOYMENT", timedelta(0))
        check = one(runs.dead_scheduler(installation), BAD, "sqlalchemy<2.1", "`ratchet up`")
        assert check.subject == "schedule of nightly"
        check = one(runs.outdated_deployments(installation), BAD, "with iteration_count crash")
        assert check.subject == "deployment nightly"
        one(servers.prefect_ui(installation), BAD, ":4200/api", f"PREFECT_SERVER_UI_API_URL={url}")
        assert list(servers.prefect_access(installation)) == []
    finally:
        with get_client(sync_client=True) as client:
            for deployment in made:
                client.delete_deployment(deployment)
