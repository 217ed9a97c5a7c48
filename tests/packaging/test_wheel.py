"""Content of the source distribution and the wheel, and its installation in another folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PACKAGES = ("ratchet", "trainers", "tasks", "flows", "deployments")
BUILD_FILES = {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"}
GENERATED = {"PKG-INFO", "setup.cfg"}


def repository_files() -> list[str]:
    """Return the paths of the repository's files, without ignored ones."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in done.stdout.splitlines() if (ROOT / path).is_file()]


def packaged_files(*folders: str) -> set[str]:
    return {path for path in repository_files() if path.split("/")[0] in folders}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the repository, so that builds leave no files; the folder has the usual name."""
    source = tmp_path_factory.mktemp("source") / "ratchet"
    for path in repository_files():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, source / path)
    return source


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    code = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, out], cwd=source, check=True, capture_output=True)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the source distribution, as `python -m build` does."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", out, sdist]
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


def test_the_source_distribution_contains_exactly_what_builds_the_wheel(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        paths = [member.name.partition("/")[2] for member in archive if member.isfile()]
    found = {path for path in paths if ".egg-info/" not in path}
    assert found == packaged_files(*PACKAGES, "examples", *BUILD_FILES) | GENERATED


def test_the_wheel_contains_exactly_the_packages_and_the_examples(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    examples = {f"flows/{path}" for path in packaged_files("examples")}
    assert names == packaged_files(*PACKAGES) | examples


def test_the_metadata_contain_the_licence_and_a_readme_with_absolute_links(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
    text = files.read(metadata).decode()
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) == len(re.findall(r"\]\(([^)]*)\)", (ROOT / "README.md").read_text()))
    assert all(link.startswith(("https://", "#")) for link in links)
    assert "Description-Content-Type: text/markdown" in text
    assert "License-Expression: MIT" in text
    assert "License-File: LICENSE" in text
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in files.namelist())


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


def test_a_new_experiment_runs_with_the_installed_command(installed: Path, tmp_path: Path) -> None:
    ratchet = installed / "bin" / "ratchet"
    less = ["rl.num_iterations=1", "rl.num_test_iterations=1", "settings.tracking=false"]
    for command in (["new", "mine"], ["run", "mine/mine.yaml", *less]):
        subprocess.run([ratchet, *command], cwd=tmp_path, capture_output=True, check=True)
    (report,) = tmp_path.glob("runs/*/report.html")
    assert "<style>" in report.read_text()


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
