"""A lab's databases on a real PostgreSQL: creation, use by both servers, backup and restore."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import random
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from deployments.local_stack import LocalStack
from deployments.stack_services import get_text
from flows.process.checks.base import CheckResult, Installation
from flows.process.checks.servers import prefect_database
from flows.process.stack_file import MLFLOW_PASSWORD, PREFECT_AUTH, read_credentials

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deployments" / "docker"
DATABASE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
ROLES = ("prefect", "mlflow")
PROGRAMS = ["initdb", "pg_ctl", "psql", "pg_dump", "pg_restore"]

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(900)]

# Runs the commands of `docker compose` on this machine instead of in a container.
STAND_IN = """#!/usr/bin/env bash
shift 3
case $1 in
exec) shift 3; exec "$@" ;;
run) shift 4; program=$2; shift 3; exec "$program" "${@//\\/work/$WORK}" ;;
esac
"""


def programs_folder() -> Path | None:
    folders = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    found = shutil.which("initdb")
    folders += [Path(found).parent] if found else []
    return next((f for f in folders if all((f / name).exists() for name in PROGRAMS)), None)


def other_user() -> dict[str, str]:
    """Return a non-root user for PostgreSQL, which refuses to run as root."""
    return {} if os.geteuid() else {"user": pwd.getpwnam("nobody").pw_name, "group": "nogroup"}


@dataclass(frozen=True)
class Lab:
    environment: dict[str, str]
    port: int
    root: Path

    @property
    def secrets(self) -> Path:
        return self.root / "secrets"

    def try_to_run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )

    def run(self, *command: str | Path) -> str:
        done = self.try_to_run(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(self, database: str, query: str) -> str:
        return self.run("psql", "-AtU", "postgres", database, "-c", query).strip()

    def url(self, scheme: str, role: str) -> str:
        return f"{scheme}://{role}@127.0.0.1:{self.port}/{role}"

    def as_role(self, role: str, *arguments: str) -> str:
        """Run Python as the image does, with the password in a file."""
        entrypoint = ["sh", str(DOCKER / "entrypoint.sh"), "sh", "-c", 'exec "$0" "$@"']
        files = [f"PGPASSWORD_FILE={self.secrets / f'{role}_database'}"]
        return self.run("env", *files, *entrypoint, sys.executable, *arguments)


def free_port() -> int:
    """Return a free port outside the ephemeral range, which outgoing connections cannot take."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("0.0.0.0", port))
            return port
    raise AssertionError("no free port")


def address_of_this_machine() -> str:
    """Return a non-loopback address if available."""
    every = [a for some in psutil.net_if_addrs().values() for a in some]
    found = [a.address for a in every if a.family is socket.AF_INET]
    return next((a for a in found if not a.startswith("127.")), "127.0.0.1")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = programs_folder()
    if folder is None:
        pytest.skip(f"no PostgreSQL here: {', '.join(PROGRAMS)} are needed")
    # the length of a socket's path is limited, and another user must have access
    root = Path(subprocess.check_output(["mktemp", "-d", "/tmp/lab.XXXXXX"], text=True).strip())
    user = other_user()
    root.chmod(0o755)
    database = root / "database"
    database.mkdir()
    if user:
        shutil.chown(database, **user)
    tools = tmp_path_factory.mktemp("tools")
    (tools / "docker").write_text(STAND_IN)
    (tools / "docker").chmod(0o755)
    port = free_port()
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(tools), str(folder), os.environ["PATH"]]),
        "PGHOST": str(database),
        "PGPORT": str(port),
        "RATCHET_DOMAIN": "lab.example.org",
        "RATCHET_SECRETS": str(root / "secrets"),
        "SECRETS": str(root / "secrets"),
        "WORK": str(root / "work"),
        "PREFECT_HOME": str(root / "prefect"),
    }
    made = Lab(environment, port, root)
    environment[DATABASE] = made.url("postgresql+asyncpg", "prefect")
    (root / "work" / "runs").mkdir(parents=True)
    for name in (".ratchet", "mlartifacts"):
        (root / "work" / name).mkdir()
    quiet = {"stdout": subprocess.DEVNULL, "cwd": root, "check": True, **user}
    server = [folder / "pg_ctl", "-D", database / "data", "-w", "-l", database / "log"]
    settings = f"-p {port} -k {database} -c fsync=off -c listen_addresses=127.0.0.1"
    initdb = [folder / "initdb", "-D", database / "data", "-U", "postgres", "--no-sync"]
    subprocess.run([*initdb, "-A", "trust", "--auth-host=scram-sha-256"], **quiet)
    subprocess.run([*server, "-o", settings, "start"], **quiet)
    try:
        made.run(DOCKER / "lab.sh", "secrets")
        made.run("psql", "-qU", "postgres", "-f", DOCKER / "databases.sql")
        yield made
    finally:
        subprocess.run([*server, "-m", "immediate", "stop"], **quiet)
        shutil.rmtree(root)


@pytest.fixture
def entered(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Set the databases' URLs and a password file, as for servers without containers."""
    passwords = lab.root / "pgpass"
    passwords.touch(mode=0o600)
    lines = (f"*:*:*:{r}:{(lab.secrets / f'{r}_database').read_text()}\n" for r in ROLES)
    passwords.write_text("".join(lines))
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    monkeypatch.setenv(DATABASE, lab.environment[DATABASE])
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", lab.url("postgresql", "mlflow"))
    return lab


def check_database() -> tuple[CheckResult, str]:
    (found,) = prefect_database(Installation(Path("home"), Path("runs")))
    return found.verdict, found.details


def test_prefects_database_is_created_checked_and_restored_from_a_backup(
    entered: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, backup = entered, tmp_path / "backup"
    lab.as_role("prefect", *["-m", "prefect", "server", "database", "upgrade", "--yes"])
    assert check_database() == (CheckResult.GOOD, f"127.0.0.1:{lab.port}/prefect, with pg_trgm")
    lab.ask("prefect", "insert into variable (name, value) values ('kept', '1')")
    kept = Path(lab.environment["WORK"], "runs", "results.json")
    kept.write_text("{}")

    lab.run(DOCKER / "lab.sh", "backup", backup)
    lab.ask("prefect", "delete from variable")
    lab.ask("prefect", "create table later (a int)")
    lab.ask("prefect", "drop extension pg_trgm cascade")
    verdict, details = check_database()
    assert verdict is CheckResult.WARNING  # the role owns the database
    command = details.rpartition("`")[0].rpartition("`")[2]
    assert "-U postgres -d prefect -c 'create extension pg_trgm'" in command
    lab.ask("prefect", "alter database prefect owner to postgres")
    assert check_database()[0] is CheckResult.BAD
    kept.unlink()
    kept.with_name("later").touch()
    lab.run(DOCKER / "lab.sh", "restore", backup)

    assert lab.ask("prefect", "select name from variable") == "kept"
    assert lab.ask("prefect", "select to_regclass('later') is null") == "t"
    assert check_database()[0] is CheckResult.GOOD
    assert kept.exists()
    assert not kept.with_name("later").exists()

    with (backup / "mlflow.dump").open("ab") as dump:
        dump.write(b"x")
    refused = lab.try_to_run(DOCKER / "lab.sh", "restore", backup)
    assert refused.returncode != 0
    assert "mlflow.dump" in refused.stdout
    assert kept.exists()

    monkeypatch.setenv("PGPASSFILE", "/dev/null")
    monkeypatch.setenv("PGPASSWORD", "guessed")
    verdict, details = check_database()
    assert verdict is CheckResult.BAD
    assert "password authentication failed" in details
    assert "guessed" not in details


def test_mlflows_database_is_created_and_upgraded(lab: Lab) -> None:
    url = lab.url("postgresql", "mlflow")
    code = (
        "import mlflow, mlflow.cli, sys; url = sys.argv[1];"
        "mlflow.MlflowClient(url).create_experiment('kept'); mlflow.cli.cli(['db', 'upgrade', url])"
    )
    lab.as_role("mlflow", "-c", code, url)
    assert lab.ask("mlflow", "select name from experiments order by 1") == "Default\nkept"


EXPERIMENT = """\
scenario: graph_isomorphism
trainer: {module_path: tiny_trainer.py, class_name: TinyTrainer}
dataset: generated
graph_isomorphism: {num_pairs: 40, graph_sizes: [7, 8, 9]}
rl.num_iterations: 2
settings: {retries: 0, store: "s3://lab/store"}
"""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start a local S3 service with a bucket ``lab``."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", free_port())
    server.start()
    url = f"http://127.0.0.1:{server._port}"
    for name, value in (
        ("AWS_ENDPOINT_URL", url),
        ("AWS_ACCESS_KEY_ID", "tests"),
        ("AWS_SECRET_ACCESS_KEY", "tests"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="lab")
    yield "lab"
    server.stop()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(ROOT / "tests" / "flows" / "tiny_trainer.py", tmp_path)
    (tmp_path / "tiny.yaml").write_text(EXPERIMENT)
    monkeypatch.setenv("TINY_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("PREFECT_HOME", "PREFECT_LOGGING_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ratchet(*arguments: str) -> str:
    code = "import sys; from flows.cli.main import app; app(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def status(url: str, login: str | None = None) -> int:
    headers = {"Authorization": f"Basic {b64encode(login.encode()).decode()}"} if login else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.in_turn(2, of="deployments")
def test_a_run_on_servers_with_passwords_postgres_and_s3(
    entered: Lab, bucket: str, project: Path
) -> None:
    import boto3

    home = project / ".ratchet"
    stack = LocalStack(home, free_port(), free_port(), worker=False, host="0.0.0.0")
    address = address_of_this_machine()
    try:
        started = stack.start()
        logins = read_credentials(home)
        user = f"admin:{logins[MLFLOW_PASSWORD]}"
        prefect = f"http://{address}:{started.prefect_port}/api/admin/version"
        mlflow = f"http://{address}:{started.mlflow_port}/api/2.0/mlflow/experiments/get-by-name"
        mlflow = f"{mlflow}?experiment_name=Default"
        assert [
            status(prefect),
            status(prefect, "admin:x"),
            status(prefect, logins[PREFECT_AUTH]),
        ] == [*(401, 401, 200)]
        assert [status(mlflow), status(mlflow, "admin:x"), status(mlflow, user)] == [401, 401, 200]

        ratchet("run", "tiny.yaml")
        secrets = {line.rpartition(":")[2] for line in logins.values()} - {"admin"}
        lines = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"])]
        assert not any(secret in str(lines) for secret in secrets)
        written = [f for f in project.rglob("*") if f.is_file() and f.suffix in (".log", ".json")]
        assert not any(secret in f.read_text() for f in written for secret in secrets)

        runs = {"flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
        found = get_text(f"{started.prefect_api_url}/flow_runs/filter", runs, logins[PREFECT_AUTH])
        assert len(json.loads(found or "[]")) == 1
    finally:
        stack.stop()
    finished = "select count(*) from flow_run where state_type = 'COMPLETED'"
    assert entered.ask("prefect", finished) == "1"
    assert entered.ask("mlflow", "select count(*) from runs where status = 'FINISHED'") != "0"
    assert boto3.client("s3").list_objects_v2(Bucket=bucket, MaxKeys=1)["KeyCount"] == 1
    assert list((project / "runs").glob("*/report.html"))
