"""``ratchet doctor`` sees what is wrong and says what to do."""

from __future__ import annotations

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
