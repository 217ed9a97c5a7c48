"""Files of the images and the lab's server: size, reproducibility, and privileges."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deployments" / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
ENTRYPOINT = DOCKER / "entrypoint.sh"


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions with their arguments, continuation lines joined."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(i, rest) for i, _, rest in (x.partition(" ") for x in joined.splitlines() if x)]


def test_the_base_image_is_specified_once_with_its_version() -> None:
    arguments = dict(rest.split("=", 1) for i, rest in instructions() if i == "ARG")
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", arguments["BASE_IMAGE"])
    sources = {rest.partition(" AS ")[0] for i, rest in instructions() if i == "FROM"}
    assert sources - {"${BASE_IMAGE}"} <= {"build", "base"}


def test_all_packages_have_pinned_versions() -> None:
    installs = [part for i, rest in instructions() if i == "RUN" for part in rest.split("&&")]
    installs = [part for part in installs if "pip install" in part]
    assert installs
    assert all("-c constraints.txt" in part for part in installs)
    pinned = {
        line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().split()
    }
    for name in ("prefect", "prefect-docker", "prefect-kubernetes", "psycopg2-binary", "flask-wtf"):
        assert name in pinned
        assert name in " ".join(installs).lower()
    assert "s3fs" in pinned


def test_images_contain_no_build_tools_and_do_not_run_as_root() -> None:
    final = DOCKERFILE.partition(" AS base\n")[2]
    assert "pip install" not in final
    assert "apt-get" not in DOCKERFILE
    users = [rest for i, rest in instructions() if i == "USER"]
    assert [user.split(":")[0] for user in users] == ["10001"]
    assert "\nADD " not in DOCKERFILE
    assert not re.search(r"(?i)(password|secret|token|key)\w*=", DOCKERFILE)


def test_images_contain_only_the_sources_of_the_wheel() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*"
    assert "**/secrets" in patterns
    kept = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    assert all((ROOT / name).exists() for name in kept)
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages <= set(kept)


def test_images_are_tagged_with_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    folders = [DOCKER, ROOT / "deployments" / "kubernetes"]
    files = [file for folder in folders for file in folder.iterdir() if file.is_file()]
    tag = re.compile(r"\bratchet(?:-server)?:(\d+\.[\w.]*)")
    assert {found for file in files for found in tag.findall(file.read_text())} == {version}


def test_services_have_no_more_rights_than_they_need() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["user"].split(":")[0] not in ("", "0", "root"), name
        assert "privileged" not in service
        assert service["healthcheck"].get("test") or service["restart"] == "no", name
        assert service["cpus"], name
        assert service["mem_limit"], name
        assert "latest" not in service["image"]
        assert ":" in service["image"]
    open_to_all = {name for name, service in COMPOSE["services"].items() if "ports" in service}
    assert open_to_all == {"proxy"}
    assert COMPOSE["networks"]["database"] == {"internal": True}


def test_services_reference_defined_names_and_contain_no_secrets() -> None:
    for name, service in COMPOSE["services"].items():
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"]), name
        assert set(service["networks"]) <= set(COMPOSE["networks"]), name
        assert set(service.get("depends_on", {})) <= set(COMPOSE["services"]), name
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (DOCKER / source).exists(), name
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|AUTH_STRING|SECRET_KEY", variable):
                assert variable.endswith("_FILE"), name
                assert Path(value).name in service["secrets"], name
    made = re.findall(r"\w+", (DOCKER / "lab.sh").read_text())
    assert set(COMPOSE["secrets"]) <= set(made)


@pytest.mark.parametrize("script", ["entrypoint.sh", "lab.sh"])
def test_scripts_parse_in_their_shells(script: str) -> None:
    shell = shutil.which("bash" if script == "lab.sh" else "sh")
    assert shell is not None
    subprocess.run([shell, "-n", DOCKER / script], check=True)


def entrypoint(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", ENTRYPOINT, *arguments],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_secret_is_read_from_its_file_and_the_file_variable_is_unset(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a b$c\n")
    shown = entrypoint("sh", "-c", "env", PGPASSWORD_FILE=str(secret)).stdout.splitlines()
    assert "PGPASSWORD=a b$c" in shown
    assert not any("PGPASSWORD_FILE" in line for line in shown)


def test_a_secret_that_is_missing_or_empty_stops_the_start(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for file in (empty, tmp_path / "none"):
        refused = entrypoint("sh", "-c", "echo started", PGPASSWORD_FILE=str(file))
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "PGPASSWORD_FILE" in refused.stderr
