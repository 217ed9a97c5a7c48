"""The example, with only the guide's required method, trains in one run, in stages and killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ratchet.plugins import load_class
from ratchet.rollouts.files import load_nested_array_dict
from trainers.checkpointing import PROGRESS_NAME
from trainers.registry import trainer_class
from trainers.state_tree import load_tree
from trainers.text.state import State

ROOT = Path(__file__).parents[3]
REFERENCE = {"module_path": "custom_text_trainer.py", "class_name": "RightRolloutsTrainer"}


def test_one_method_is_enough(tiny_text):
    hyper_params = tiny_text.parameters(trainer=REFERENCE)
    found = trainer_class(hyper_params, ROOT / "examples")
    assert found.supports_stages()
    trainer = tiny_text.trainer(hyper_params, found=found)
    trainer.train()
    assert trainer.state.train_loop_stage == "done"
    assert trainer.state.agents["verifier"].model_name.startswith("ft:ratchet-tiny:verifier:")
    train = [record for record in trainer.history if record.stage == "train"]
    assert all(record.values["mean_words"] > 0 for record in train)


def test_a_trainer_without_the_method_cannot_be_made(tiny_text):
    base = load_class(f"{ROOT}/examples/custom_text_trainer.py:RightRolloutsTrainer").__mro__[1]
    with pytest.raises(TypeError, match="_stage_create_fine_tune_jobs"):
        tiny_text.trainer(tiny_text.parameters(), found=base)


@pytest.mark.slow
def test_the_example_runs_as_its_header_says():
    done = subprocess.run(
        [sys.executable, "examples/custom_text_trainer.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "create_fine_tune_jobs 0" in done.stdout
    assert re.search(r"^test 1: \d\d statistics$", done.stdout, re.MULTILINE)


@pytest.mark.in_turn(4, of="kills")
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["pure_text_ei", pytest.param("pure_text_malt", marks=pytest.mark.exhaustive)]
)
def test_a_killed_process_is_gone_on_from_to_the_same_end(tmp_path, name):
    def start(home: str, pause: float) -> subprocess.Popen:
        command = [sys.executable, "tests/trainers/text/tiny_text.py", name, str(tmp_path / home)]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen([*command, str(pause)], cwd=ROOT, env=env)

    assert start("whole", 0).wait() == 0
    kills = 0
    while True:
        process = start("killed", 0.004)
        journals = tmp_path / "killed" / "checkpoints" / "r@files" / "journals"
        while process.poll() is None and not (
            kills < 2 and any(journals.glob("*.jsonl")) and time.sleep(0.05 * kills) is None
        ):
            time.sleep(0.01)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert process.returncode == 0
    assert kills == 2
    checkpoints = [tmp_path / home / "checkpoints" / "r" for home in ("whole", "killed")]
    states = [State.load(checkpoint / "state") for checkpoint in checkpoints]
    assert states[0] == states[1]
    assert states[0].train_loop_stage == "done"
    folders = [each.with_name("r@files") / "rollouts" for each in checkpoints]
    names = [sorted(path.name for path in folder.iterdir()) for folder in folders]
    assert names[0] == names[1]
    for file in names[0]:
        one, other = (load_nested_array_dict(folder / file) for folder in folders)
        assert one == other
    history = [load_tree(each, PROGRESS_NAME)["history"] for each in checkpoints]
    np.testing.assert_equal(*history)
