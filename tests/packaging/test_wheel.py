"""Content of the wheel, and its installation in a different folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PACKAGES = ("ratchet", "trainers", "tasks", "flows", "deployments")
DATA = {".typed", ".html", ".j2", ".css", ".js", ".yaml", ".txt"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the sources, so that builds leave no files; the folder has the usual name of a clone."""
    source = tmp_path_factory.mktemp("source") / "ratchet"
    for name in (*PACKAGES, "tests", "examples", "benchmarks"):
        ignored = shutil.ignore_patterns("__pycache__")
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    return source


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", out, source]
    subprocess.run(command, check=True)
    (built,) = out.glob("*.whl")
    return built


def install(venv: Path, *what: Path | str) -> Path:
    """Install into a new virtual environment that uses the current one's libraries."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = (venv / "lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", venv / "bin" / "python"]
    options = ["--quiet", "--no-deps", "--no-index", "--ignore-installed"]
    subprocess.run([*pip, "install", *options, *what], check=True)
    return venv


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("venv"), wheel)


def test_the_wheel_contains_only_the_packages(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == set(PACKAGES)


def test_the_metadata_contain_the_licence(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
    text = files.read(metadata).decode()
    assert "License-Expression: MIT" in text
    assert "License-File: LICENSE" in text
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in files.namelist())


def test_the_wheel_contains_every_file_of_the_packages(wheel: Path) -> None:
    shipped = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in {".py", *DATA} and "__pycache__" not in path.parts
    }
    assert expected - shipped == set()


def test_the_command_works_in_a_different_folder(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [installed / "bin" / "ratchet", "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "doctor" in done.stdout


def test_the_examples_are_copied_by_the_installed_command(installed: Path, tmp_path: Path) -> None:
    command = [installed / "bin" / "ratchet", "new", "mine", "--kind", "language-task"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert "class Mine(DrawnTasks)" in (tmp_path / "mine" / "mine.py").read_text()


def test_packages_are_imported_from_the_installation(installed: Path, tmp_path: Path) -> None:
    code = (
        "import importlib, importlib.util, sys\n"
        f"for name in {PACKAGES!r}: print(importlib.import_module(name).__file__)\n"
        "print(importlib.util.find_spec('tests'))"
    )
    command = [installed / "bin" / "python", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    *files, tests = done.stdout.split()
    assert len(files) == len(PACKAGES)
    assert all(file.startswith(str(installed)) for file in files)
    assert tests == "None"


def test_an_editable_clone_is_found_from_its_parent_folder(source: Path, tmp_path: Path) -> None:
    venv = install(tmp_path / "venv", "--no-build-isolation", "--editable", source)
    code = "import ratchet, flows; print(ratchet.__file__, flows.__file__)"
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [venv / "bin" / "python", "-c", code],
        cwd=source.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [str(source / name / "__init__.py") for name in ("ratchet", "flows")]
    assert done.stdout.split() == found
