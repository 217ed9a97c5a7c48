"""Access control of a stack that other machines can reach: passwords and their protection."""

from __future__ import annotations

import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from deployments.local_stack import LocalStack, LocalStackError
from deployments.stack_services import (
    create_credentials,
    local_hostnames,
    mlflow_access,
    stack_environment,
    stack_services,
)
from flows.process.environment import prepare_environment
from flows.process.stack_file import (
    CREDENTIALS_FILE,
    CredentialsError,
    ProcessMark,
    Stack,
    read_credentials,
    read_stack,
)
from flows.process.tracking_uri import choose_tracking_uri, export_mlflow_credentials
from ratchet.errors import MissingPackageError

_CLIENT = ("PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")


@pytest.fixture(autouse=True)
def _no_logins_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*_CLIENT, "PREFECT_API_URL", "PREFECT_PROFILE", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(name, "")  # restored afterwards in all cases
        monkeypatch.delenv(name)


@pytest.fixture
def log_in_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flask_wtf", sys)


def stack(host: str) -> Stack:
    return Stack(4200, 5000, True, ProcessMark.from_pid(os.getpid()), host=host)


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
def test_a_stack_beyond_loopback_is_open(host: str, is_open: bool, address: str) -> None:
    assert (stack(host).is_open, stack(host).address) == (is_open, address)


def test_the_stack_file_contains_the_host(tmp_path: Path) -> None:
    stack("0.0.0.0").write(tmp_path)
    assert read_stack(tmp_path) == stack("0.0.0.0")


@pytest.mark.usefixtures("log_in_is_there")
def test_passwords_are_created_once_and_readable_only_by_the_owner(tmp_path: Path) -> None:
    created = create_credentials(tmp_path)
    assert set(created) == set(_CLIENT)
    assert stat.S_IMODE((tmp_path / CREDENTIALS_FILE).stat().st_mode) == 0o600
    assert {file.name for file in tmp_path.iterdir()} == {CREDENTIALS_FILE, "mlflow_auth.db"}
    assert create_credentials(tmp_path) == created
    assert create_credentials(tmp_path / "other") != created


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("log_in_is_there")
def test_password_hashes_are_readable_only_by_the_owner(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    create_credentials(new)
    create_credentials(old)
    old.chmod(0o755)  # permissions of an earlier version
    (old / "mlflow_auth.db").write_bytes(b"users")
    (old / "mlflow_auth.db").chmod(0o644)
    create_credentials(old)
    for home in (new, old):
        assert (mode(home), mode(home / "mlflow_auth.db")) == (0o700, 0o600)
    assert (old / "mlflow_auth.db").read_bytes() == b"users"


@pytest.mark.usefixtures("log_in_is_there")
def test_users_with_lost_passwords_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mlflow_auth.db").touch()
    with pytest.raises(CredentialsError, match=r"rm .*mlflow_auth\.db"):
        create_credentials(tmp_path)
    assert not (tmp_path / CREDENTIALS_FILE).exists()
    with pytest.raises(CredentialsError, match="ratchet up"):
        read_credentials(tmp_path)


def test_without_the_package_no_server_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ratchet.lazy.is_installed", lambda package: package != "flask_wtf")
    with pytest.raises(MissingPackageError, match=r"ratchet-experiments\[auth\]"):
        LocalStack(tmp_path, host="0.0.0.0").start()
    assert read_stack(tmp_path) is None


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalStackError, match=r"--host: cannot listen at '192\.0\.2\.77'"):
        LocalStack(tmp_path, host="192.0.2.77")


@pytest.mark.usefixtures("log_in_is_there")
def test_processes_receive_only_required_secrets_and_none_on_the_command_line(
    tmp_path: Path,
) -> None:
    logins = create_credentials(tmp_path)
    (prefect, mlflow), (worker,) = stack_services(tmp_path, stack("0.0.0.0"), worker=True)
    secret = logins["PREFECT_API_AUTH_STRING"]
    assert prefect.environment["PREFECT_SERVER_API_AUTH_STRING"] == secret
    assert worker.environment["PREFECT_API_AUTH_STRING"] == secret
    assert "PREFECT_SERVER_API_AUTH_STRING" not in worker.environment
    assert mlflow.environment["MLFLOW_AUTH_ADMIN_PASSWORD"] == logins["MLFLOW_TRACKING_PASSWORD"]
    assert "basic-auth" in mlflow.command
    for service in (prefect, mlflow, worker):
        assert not any(value in " ".join(service.command) for value in (secret, secret[6:]))
        assert logins["MLFLOW_TRACKING_PASSWORD"] not in " ".join(service.command)
    local, *_ = stack_services(tmp_path, stack("127.0.0.1"), worker=False)
    assert not any("AUTH" in name for service in local for name in service.environment)


@pytest.mark.usefixtures("log_in_is_there")
def test_local_clients_log_in_only_at_the_stack(tmp_path: Path) -> None:
    logins = create_credentials(tmp_path)
    stack("0.0.0.0").write(tmp_path)
    assert choose_tracking_uri(tmp_path, "http://elsewhere.example") == "http://elsewhere.example"
    export_mlflow_credentials(tmp_path, "http://elsewhere.example")
    assert choose_tracking_uri(tmp_path, None) == "http://127.0.0.1:5000"
    assert not any(name in os.environ for name in _CLIENT), "choosing a URI sets no variables"
    export_mlflow_credentials(tmp_path, None)
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == logins["MLFLOW_TRACKING_PASSWORD"]
    assert "PREFECT_API_AUTH_STRING" not in os.environ
    environment = stack_environment(tmp_path, stack("0.0.0.0"))
    assert environment["PREFECT_API_AUTH_STRING"] == logins["PREFECT_API_AUTH_STRING"]


@pytest.mark.usefixtures("log_in_is_there")
def test_a_run_logs_in_at_the_stacks_prefect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins = create_credentials(tmp_path)
    stack("0.0.0.0").write(tmp_path)
    monkeypatch.delenv("PREFECT_HOME")
    prepare_environment(tmp_path, make_folders=False)
    assert os.environ["PREFECT_API_URL"] == "http://127.0.0.1:4200/api"
    assert os.environ["PREFECT_API_AUTH_STRING"] == logins["PREFECT_API_AUTH_STRING"]


@pytest.mark.usefixtures("log_in_is_there")
def test_mlflow_accepts_requests_for_local_hostnames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins = create_credentials(tmp_path)
    assert local_hostnames("192.0.2.7") == ["192.0.2.7", "127.0.0.1", "localhost"]
    assert {socket.gethostname(), "127.0.0.1"} <= set(local_hostnames("0.0.0.0"))
    access = mlflow_access(tmp_path, stack("192.0.2.7"), logins)
    assert access["MLFLOW_SERVER_ALLOWED_HOSTS"].startswith("192.0.2.7:5000,")
    assert access["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"].startswith("http://192.0.2.7:5000,")
    monkeypatch.setenv("MLFLOW_SERVER_ALLOWED_HOSTS", "mlflow.lab.example.org")
    access = mlflow_access(tmp_path, stack("192.0.2.7"), logins)
    assert access["MLFLOW_SERVER_ALLOWED_HOSTS"] == "mlflow.lab.example.org"
