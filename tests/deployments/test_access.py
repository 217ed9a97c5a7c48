"""Who may ask a stack that other machines reach: passwords are made, and kept from others."""

from __future__ import annotations

import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from deployments.access import make_logins, mlflow_access, own_names
from deployments.local_stack import LocalStack, LocalStackError
from deployments.parts import stack_environment, stack_parts
from flows.process.environment import prepare_environment
from flows.process.logins import FILE_NAME, LoginError, read_logins
from flows.process.stack_file import ProcessMark, Stack, read_stack
from flows.process.tracking_uri import choose_tracking_uri
from ratchet.errors import MissingPackageError

_CLIENT = ("PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")


@pytest.fixture(autouse=True)
def _no_logins_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*_CLIENT, "PREFECT_API_URL", "PREFECT_PROFILE", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(name, "")  # and restored afterwards, whatever is set meanwhile
        monkeypatch.delenv(name)


@pytest.fixture
def log_in_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flask_wtf", sys)


def stack(host: str) -> Stack:
    return Stack(4200, 5000, True, ProcessMark.of(os.getpid()), host=host)


@pytest.mark.parametrize(
    ("host", "is_open", "address"),
    [
        ("127.0.0.1", False, "127.0.0.1"),
        ("127.8.0.1", False, "127.8.0.1"),
        ("localhost", False, "localhost"),
        ("::1", False, "[::1]"),
        ("0.0.0.0", True, "127.0.0.1"),
        ("::", True, "[::1]"),
        ("192.0.2.7", True, "192.0.2.7"),
        ("lab.example.org", True, "lab.example.org"),
    ],
)
def test_what_listens_beyond_loopback_is_open(host: str, is_open: bool, address: str) -> None:
    assert (stack(host).is_open, stack(host).address) == (is_open, address)


def test_the_stack_file_keeps_the_host(tmp_path: Path) -> None:
    stack("0.0.0.0").write(tmp_path)
    assert read_stack(tmp_path) == stack("0.0.0.0")


@pytest.mark.usefixtures("log_in_is_there")
def test_passwords_are_made_once_and_are_the_owners_alone(tmp_path: Path) -> None:
    made = make_logins(tmp_path)
    assert set(made) == set(_CLIENT)
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600
    assert {file.name for file in tmp_path.iterdir()} == {FILE_NAME, "mlflow_auth.db"}
    assert make_logins(tmp_path) == made
    assert make_logins(tmp_path / "other") != made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("log_in_is_there")
def test_password_hashes_are_the_owners_alone(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    make_logins(new)
    make_logins(old)
    old.chmod(0o755)  # as an earlier version has left them
    (old / "mlflow_auth.db").write_bytes(b"users")
    (old / "mlflow_auth.db").chmod(0o644)
    make_logins(old)
    for home in (new, old):
        assert (mode(home), mode(home / "mlflow_auth.db")) == (0o700, 0o600)
    assert (old / "mlflow_auth.db").read_bytes() == b"users"


@pytest.mark.usefixtures("log_in_is_there")
def test_users_whose_passwords_are_gone_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mlflow_auth.db").touch()
    with pytest.raises(LoginError, match=r"rm .*mlflow_auth\.db"):
        make_logins(tmp_path)
    assert not (tmp_path / FILE_NAME).exists()
    with pytest.raises(LoginError, match="ratchet up"):
        read_logins(tmp_path)


def test_without_the_package_nothing_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ratchet.lazy.is_installed", lambda package: package != "flask_wtf")
    with pytest.raises(MissingPackageError, match=r"ratchet-experiments\[auth\]"):
        LocalStack(tmp_path, host="0.0.0.0").start()
    assert read_stack(tmp_path) is None


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalStackError, match=r"--host: got '192\.0\.2\.77'"):
        LocalStack(tmp_path, host="192.0.2.77")


@pytest.mark.usefixtures("log_in_is_there")
def test_each_process_gets_the_secrets_it_needs_and_no_command_line_has_one(
    tmp_path: Path,
) -> None:
    logins = make_logins(tmp_path)
    (prefect, mlflow), (worker,) = stack_parts(tmp_path, stack("0.0.0.0"), worker=True)
    secret = logins["PREFECT_API_AUTH_STRING"]
    assert prefect.environment["PREFECT_SERVER_API_AUTH_STRING"] == secret
    assert worker.environment["PREFECT_API_AUTH_STRING"] == secret
    assert "PREFECT_SERVER_API_AUTH_STRING" not in worker.environment
    assert mlflow.environment["MLFLOW_AUTH_ADMIN_PASSWORD"] == logins["MLFLOW_TRACKING_PASSWORD"]
    assert "basic-auth" in mlflow.command
    for part in (prefect, mlflow, worker):
        assert not any(value in " ".join(part.command) for value in (secret, secret[6:]))
        assert logins["MLFLOW_TRACKING_PASSWORD"] not in " ".join(part.command)
    at_home, *_ = stack_parts(tmp_path, stack("127.0.0.1"), worker=False)
    assert not any("AUTH" in name for part in at_home for name in part.environment)


@pytest.mark.usefixtures("log_in_is_there")
def test_clients_of_this_machine_log_in_at_the_stack_and_nowhere_else(tmp_path: Path) -> None:
    logins = make_logins(tmp_path)
    stack("0.0.0.0").write(tmp_path)
    assert choose_tracking_uri(tmp_path, "http://elsewhere.example") == "http://elsewhere.example"
    assert not any(name in os.environ for name in _CLIENT)
    assert choose_tracking_uri(tmp_path, None) == "http://127.0.0.1:5000"
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == logins["MLFLOW_TRACKING_PASSWORD"]
    assert "PREFECT_API_AUTH_STRING" not in os.environ
    environment = stack_environment(tmp_path, stack("0.0.0.0"))
    assert environment["PREFECT_API_AUTH_STRING"] == logins["PREFECT_API_AUTH_STRING"]


@pytest.mark.usefixtures("log_in_is_there")
def test_a_run_logs_in_at_the_stacks_prefect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins = make_logins(tmp_path)
    stack("0.0.0.0").write(tmp_path)
    monkeypatch.delenv("PREFECT_HOME")
    prepare_environment(tmp_path, make_folders=False)
    assert os.environ["PREFECT_API_URL"] == "http://127.0.0.1:4200/api"
    assert os.environ["PREFECT_API_AUTH_STRING"] == logins["PREFECT_API_AUTH_STRING"]


@pytest.mark.usefixtures("log_in_is_there")
def test_mlflow_takes_requests_for_the_names_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins = make_logins(tmp_path)
    assert own_names("192.0.2.7") == ["192.0.2.7", "127.0.0.1", "localhost"]
    assert {socket.gethostname(), "127.0.0.1"} <= set(own_names("0.0.0.0"))
    access = mlflow_access(tmp_path, stack("192.0.2.7"), logins)
    assert access["MLFLOW_SERVER_ALLOWED_HOSTS"].startswith("192.0.2.7:5000,")
    assert access["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"].startswith("http://192.0.2.7:5000,")
    monkeypatch.setenv("MLFLOW_SERVER_ALLOWED_HOSTS", "mlflow.lab.example.org")
    access = mlflow_access(tmp_path, stack("192.0.2.7"), logins)
    assert access["MLFLOW_SERVER_ALLOWED_HOSTS"] == "mlflow.lab.example.org"
