"""State that a user's trainer keeps on ``self`` survives SIGKILL in every trainer family."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.stages.files import STATE_FOLDER
from tests.service.conftest import FakeEngine, RunningService
from tests.tasks.naive_trainers import FAMILIES, NaiveArm
from trainers.custom_state import load_attributes

ROOT = Path(__file__).parents[2]
FAULTS = {
    "chat": "stage=create_fine_tune_jobs;iteration=2",
    "loop": "",
}
TRAINING = "stage=train;iteration=4"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with RunningService(tmp_path_factory.mktemp("home"), FakeEngine(0.0)).serving() as service:
        yield service


@pytest.mark.in_turn(2)
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_killed_run_of_a_naive_trainer_ends_like_an_undisturbed_one(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    changes = {}
    if family == "remote":
        url = request.getfixturevalue("service").url
        changes = {"language.train_service": {"backend": "ratchet", "url": url}}
    undisturbed = NaiveArm(family, tmp_path / "undisturbed", **changes).work()
    assert _killed(family, tmp_path / "killed", changes) == -signal.SIGKILL
    arm = NaiveArm(family, tmp_path / "killed", **changes)
    resumed = arm.work()
    assert resumed == undisturbed
    if family == "chat":
        folder = arm.store.open(arm.keys.state_key(3)) / STATE_FOLDER
        assert load_attributes(folder)["_counts"] == {"value": 3}
    elif family != "loop":
        counts = [values["kept/counts"] for values in resumed.values() if "kept/counts" in values]
        assert counts == [1, 2, 3, 4, 5, 6]


def _killed(family: str, home: Path, changes: dict[str, object]) -> int:
    """Run the experiment in a process that is killed during training; return its exit status."""
    fault = FAULTS.get(family, TRAINING)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if fault:
        environment["RATCHET_FAULT"] = f"{fault};kind=kill;once={home}-struck"
    else:
        environment["KILL_ONCE"] = "1"
    command = [sys.executable, "-m", "tests.tasks.naive_trainers", family, str(home)]
    done = subprocess.run(
        [*command, json.dumps(changes)], env=environment, cwd=ROOT, check=False, timeout=300
    )
    return done.returncode
