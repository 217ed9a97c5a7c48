"""TorchRL's DreamerV3 parts in the example's trainer: it resumes, and runs as documented."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SMALL = {"num_iterations": 3, "frames_per_batch": 24, "minibatch_size": 16, "num_epochs": 2}


@pytest.mark.slow
def test_a_world_model_learns_resumes_and_its_policy_is_tested(small):
    trainer = {"module_path": "custom_dreamer_trainer.py", "class_name": "Dreamer"}
    params = small.custom_parameters(trainer=trainer, dataset="Pendulum-v1", rl=SMALL)
    whole, cut, resumed = (small.build(params) for _ in range(3))
    for each in (whole, cut):
        each.initial_state()
    before = whole.state
    metrics = whole.run_iterations(0, 3)
    cut.run_iterations(0, 1)
    resumed.state = cut.state
    assert resumed.run_iterations(1, 3) == metrics[1:]
    assert resumed.state == whole.state != before
    assert any(name.startswith("loss_model") for name in metrics[0])
    assert any("momentum" in name for name in whole.state.tensors)
    assert whole.state.buffers["replay_buffer"].size == 72
    assert whole.run_test("test").metrics["agent.mean_episode_reward"] < 0


@pytest.mark.slow
def test_the_example_runs_as_its_header_says(small):
    root = small.EXAMPLES.parent
    done = subprocess.run(
        [sys.executable, "examples/custom_dreamer_trainer.py"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [["train", str(i)] for i in range(3)]
    assert lines[3].startswith("test")
