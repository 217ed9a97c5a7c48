"""Stages survive an upgrade only if its code is proven equivalent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.errors import StageKeyError
from ratchet.shadowing import ROOT
from ratchet.store import fingerprint
from ratchet.store.fingerprint import TABLE, Fingerprint, code_digest, read_equivalents
from ratchet.store.infrastructure import INFRASTRUCTURE
from tools.equivalents import new_rows

OLD, NEW = (
    {"trainers.ppo": "1" * 64, "mine": "3" * 64},
    {"trainers.ppo": "2" * 64, "mine": "3" * 64},
)


def test_equivalent_code_has_the_digest_of_the_oldest(monkeypatch):
    old, new = Fingerprint.from_modules(OLD), Fingerprint.from_modules(NEW)
    assert old.digest != new.digest
    row = {code_digest(NEW): code_digest(OLD)}
    monkeypatch.setattr(fingerprint, "_equivalents", lambda: row)
    assert Fingerprint.from_modules(NEW).digest == old.digest
    assert Fingerprint.from_modules(NEW).modules == NEW, "a manifest names its own code"
    other = Fingerprint.from_modules({**NEW, "mine": "4" * 64})
    assert other.digest != old.digest, "a plug-in still counts"


def test_the_shipped_table_can_be_read():
    read_equivalents(TABLE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a table"),
        ("{}", "not a table"),
        ('{"code": {"a": "b", "b": "c"}}', "b is equivalent to other code, and other code to it"),
    ],
)
def test_a_broken_table_is_refused(text, message, tmp_path):
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(StageKeyError, match=message):
        read_equivalents(tmp_path / "table.json")


def stage(module: str, output: int) -> dict[str, object]:
    return {"modules": {"trainers.ppo": module}, "outputs": output}


def test_only_equal_outputs_prove_a_row():
    one, two, three = (code_digest({"trainers.ppo": name}) for name in "123")
    earlier = {"train": stage("1", 5), "test": stage("1", 6), "same": stage("3", 7)}
    here = {"train": stage("2", 5), "test": stage("2", 6), "same": stage("3", 7)}
    assert new_rows(earlier, here, {}) == ({two: one}, [])
    assert new_rows(earlier, here, {one: three}) == ({two: three}, []), "not the oldest"
    differing = {**here, "test": stage("2", 0)}
    assert new_rows(earlier, differing, {}) == ({}, ["test"])
    with pytest.raises(SystemExit, match="not deterministic"):
        new_rows(earlier, {"same": stage("3", 0)}, {})
    with pytest.raises(SystemExit, match="two earlier code digests"):
        new_rows(earlier | {"test": stage("4", 6)}, here, {})


PACKAGES = ("ratchet", "trainers", "tasks", "flows", "deployments", "tools")


def run(tree: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(tree), "DO_NOT_TRACK": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def copy_tree(folder: Path) -> Path:
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


RUN = """
import sys
sys.path.insert(0, "tools")
from golden_stages import EXPERIMENTS
from flows import plan_experiment, run_experiment
from ratchet import ExperimentSettings
home = sys.argv[1]
settings = ExperimentSettings(home=home, runs=home + "/runs", tracking=False, progress="none")
if sys.argv[2] == "run":
    run_experiment(EXPERIMENTS["reinforce"], settings, name="reinforce")
for stage in plan_experiment(EXPERIMENTS["reinforce"], settings):
    print("PLAN", stage.hit, stage.reason)
"""


def plan(tree: Path, home: Path, what: str = "plan") -> set[str]:
    lines = run(tree, "-c", RUN, str(home), what).splitlines()
    return {line.partition(" ")[2] for line in lines if line.startswith("PLAN")}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_survives_edits_of_infrastructure_and_a_proven_upgrade(tmp_path):
    earlier, here = copy_tree(tmp_path / "earlier"), copy_tree(tmp_path / "here")
    home = tmp_path / "home"
    assert plan(earlier, home, "run") == {"True stored"}

    for name in INFRASTRUCTURE:
        path = here.joinpath(*name.split("."))
        for file in (
            [path.with_suffix(".py")] if path.with_suffix(".py").exists() else path.rglob("*.py")
        ):
            file.write_text(file.read_text() + "\nUNUSED_OF_A_NEW_RELEASE = 1\n")
    assert plan(here, home) == {"True stored"}

    changed = "noted = self.combined_agents\n        return (*noted.frame_keys"
    edit(
        here / "trainers/tensordict/reinforce.py",
        "return (*self.combined_agents.frame_keys",
        changed,
    )
    missing = plan(here, home)
    assert any(line.startswith("False code: trainers.tensordict.reinforce") for line in missing)

    run(here, "tools/equivalents.py", str(earlier), "reinforce")
    assert json.loads((here / "ratchet/store/equivalents.json").read_text())["code"]
    version = {line for line in plan(here, home) if "equivalent" in line}
    assert version
    assert all(line.startswith("True stored (made by ") for line in version)
    assert not {line for line in plan(here, home) if line.startswith("False")}
