"""The parts of the GPU benchmark run at a small size on a CPU."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu" / "run.py"
TITLES = {
    "generation": "### Agreement",
    "grpo": "### The end of a stage",
    "trl": "### GRPO of TRL",
    "defaults": "### Default settings, one step",
    "bits": "### Bits of three runs, one killed; exit codes [0, 0, 0]",
    "service": "### The embedded service",
    "networks": "### PPO on graphs",
}


@pytest.mark.slow
@pytest.mark.in_turn(2)
@pytest.mark.parametrize("part", TITLES)
def test_a_part_runs_and_prints_its_tables(part):
    command = [sys.executable, str(SCRIPT), part, "--tiny"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    assert TITLES[part] in process.stdout
    if part == "bits":
        assert "False" not in process.stdout
        assert process.stdout.count("| True |") == 9
