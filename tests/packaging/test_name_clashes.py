"""User folders named like Ratchet's packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.errors import ParameterError
from ratchet.plugins import load_module
from ratchet.shadowing import PACKAGES, ROOT

KEYS = """
from flows import plan_experiment
from ratchet.experiment_files import load_experiment
loaded = load_experiment({file!r}, ["settings.runs={runs}", "settings.store={runs}"])
planned = plan_experiment(loaded.hyper_params, loaded.settings, arms=loaded.arms)
print([stage.key for stage in planned])
"""
FILE = ROOT / "experiments" / "binary_erasure_channel.yaml"


def run(code: str, folder: Path, *, path: Path | None) -> subprocess.CompletedProcess[str]:
    """Run code in a folder, with ``path`` after it on Python's path, as after an installation."""
    first = f"import sys; sys.path.append({str(path)!r})\n" if path else ""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", first + code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_folder_named_like_the_clone_does_not_hide_it(tmp_path: Path) -> None:
    (tmp_path / "ratchet").mkdir()
    code = KEYS.format(file=str(FILE), runs=tmp_path / "runs")
    elsewhere = run(code, tmp_path.parent, path=ROOT)
    above = run(code, tmp_path, path=ROOT)
    assert above.returncode == 0, above.stderr
    assert above.stdout == elsewhere.stdout != ""


@pytest.mark.parametrize("package", sorted(set(PACKAGES) - {"ratchet", "flows", "deployments"}))
def test_a_package_that_hides_one_of_ratchets_is_reported(tmp_path: Path, package: str) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    done = run("from flows import run_experiment", tmp_path, path=ROOT)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert f"`{package}` is hidden by {tmp_path / package}" in last, done.stderr
    assert "Rename" in last


def test_a_plug_in_with_its_own_tasks_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "mine.py").write_text("x = 1\n")
    plug_in = tmp_path / "my_trainer.py"
    plug_in.write_text("from tasks.mine import x\n")
    with pytest.raises(ParameterError, match="`tasks` is Ratchet's own package"):
        load_module(plug_in)


@pytest.mark.slow
def test_deploying_from_a_folder_that_hides_flows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "__init__.py").touch()
    command = [Path(sys.executable).with_name("ratchet"), "deploy"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "hides Ratchet's package `flows` from Prefect" in " ".join(done.stderr.split())
