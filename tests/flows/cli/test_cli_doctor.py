"""``ratchet doctor`` sees what is wrong and says what to do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import doctor
from flows.cli.doctor import CheckResult
from flows.cli.main import app


def test_a_good_machine_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["doctor", "--home", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "fastapi" in result.stdout
    assert "writable, locks work" in result.stdout
    assert list(tmp_path.iterdir()) == [], "a check leaves nothing behind"


def test_a_wrong_version_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "0.155" if name == "fastapi" else real(name)
    )
    wrong = [check for check in doctor.versions() if check.verdict is CheckResult.BAD]
    assert [check.subject for check in wrong] == ["fastapi"]
    assert "0.155, wanted" in wrong[0].details
    assert "pip install 'fastapi" in wrong[0].details


def test_storage_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert doctor.storage("home", file / "below").verdict is CheckResult.BAD
    assert doctor.storage("home", tmp_path / "new" / "folder").verdict is CheckResult.GOOD


def test_a_server_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    result = CliRunner().invoke(app, ["doctor", "--home", str(tmp_path)])
    assert result.exit_code == 1
    assert "does not answer" in result.stdout


@pytest.fixture
def server() -> Iterator[Callable[[int], tuple[str, list[str]]]]:
    """Start servers that answer everything with one status; each with the paths it was asked."""
    started = []

    def start(status: int) -> tuple[str, list[str]]:
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(status)
                self.end_headers()

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


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(401, CheckResult.GOOD), (404, CheckResult.GOOD), (502, CheckResult.BAD)],
)
def test_an_mlflow_behind_a_proxy_may_refuse_but_not_be_down(
    server: Callable[[int], tuple[str, list[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    verdict: CheckResult,
) -> None:
    url, _ = server(status)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    (check,) = (c for c in doctor.all_checks(tmp_path, tmp_path) if url in c.details)
    assert check.verdict is verdict, check.details
    assert str(status) in check.details


def test_prefect_is_asked_for_its_health_once(
    server: Callable[[int], tuple[str, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.process import lost_runs

    url, asked = server(200)
    monkeypatch.setenv("PREFECT_API_URL", f"{url}/api")
    monkeypatch.setattr(lost_runs, "lost_flow_runs", lambda *_, **__: [])
    assert {c.subject for c in doctor.all_checks(tmp_path, tmp_path)} >= {"prefect", "threads"}
    assert asked.count("/api/health") == 1


def test_what_holds_tested_programs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from ratchet.scenarios.sandbox import programs as sandbox
    from ratchet.scenarios.sandbox.process import SandboxIsolation

    def check(isolation: SandboxIsolation) -> doctor.Check:
        monkeypatch.setattr(sandbox, "sandbox_isolation", lambda: isolation)
        return doctor.sandbox()

    plain = check(SandboxIsolation((), landlock=5, seccomp=True, unprivileged=True))
    assert plain.verdict is CheckResult.GOOD
    assert plain.details == "seccomp, Landlock 5, namespaces: none allowed"
    weak = check(SandboxIsolation((), landlock=0, seccomp=False, unprivileged=True))
    assert weak.verdict is CheckResult.WARNING
    assert "using the network or making empty files" in weak.details
