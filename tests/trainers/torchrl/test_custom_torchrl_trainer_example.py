"""The example's trainer works like any other, and runs as its header states."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trainers import TorchRlTrainer
from trainers.registry import trainer_class


def test_the_examples_trainer_is_found_by_its_file_and_learns_in_stages(small):
    params = small.custom_parameters(torchrl__evaluation_period=2, torchrl__evaluation_episodes=1)
    assert issubclass(trainer_class(params, small.EXAMPLES), TorchRlTrainer)
    whole, cut = small.build(params), small.build(params)
    for trainer in (whole, cut):
        trainer.initial_state()
    metrics = whole.run_iterations(0, 2)
    cut.run_iterations(0, 1)
    cut.state = cut.state
    assert cut.run_iterations(1, 2) == metrics[1:]
    assert cut.state == whole.state
    assert "r_evaluation" in metrics[1]
    assert metrics[1]["longest_episode"] >= metrics[0]["longest_episode"] > 1


@pytest.mark.slow
def test_the_example_runs_as_its_header_says(small):
    root = small.EXAMPLES.parent
    done = subprocess.run(
        [sys.executable, "examples/custom_torchrl_trainer.py"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:4]] == [["train", str(i)] for i in range(4)]
    assert lines[4].startswith("test")
