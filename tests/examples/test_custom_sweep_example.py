"""The example's sweep strategy defines the members of a sweep in an experiment file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows.sweeps.members import read_sweep_file, resolve_sweep
from ratchet.errors import ParameterError, UnknownNameError
from ratchet.parameters.sweeps import read_sweep_spec

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_sweep.py"
FILE = """
scenario: graph_isomorphism
trainer: vanilla_ppo
dataset: generated
sweep:
  kind: custom_sweep.py:{name}
  parameters: {{rl.lr: {{kind: uniform, low: 0.1, high: 0.9}}, rl.num_epochs: [1, 2]}}
"""
FIXED = """
from ratchet.parameters.sweeps import Distribution, SweepSpec

class Fixed(SweepSpec):
    samples = True
    parameters: dict[str, Distribution]

    def points(self):
        return [{path: 1 for path in self.parameters}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(EXAMPLE, tmp_path)
    with (tmp_path / "custom_sweep.py").open("a") as file:
        file.write(FIXED)
    return tmp_path


def write(folder: Path, name: str, *lines: str) -> str:
    path = folder / "experiment.yaml"
    path.write_text(FILE.format(name=name) + "".join(f"  {line}\n" for line in lines))
    return str(path)


@pytest.mark.slow
def test_the_example_prints_its_points() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True)
    assert len(set(done.stdout.splitlines())) == 4


def test_a_file_next_to_the_experiment_defines_the_members(folder: Path) -> None:
    path = write(folder, "LatinHypercubeSweep", "num_samples: 5", "for_each: {seed: 0..1}")
    experiment, spec, settings = read_sweep_file(path, [])
    resolved = resolve_sweep(experiment.hyper_params, spec, settings, None, name="exp")
    rates = [member.changes["rl.lr"] for member in resolved.members]
    assert len(resolved.members) == 10
    assert {int(10 * (rate - 0.1) / 1.6) for rate in rates} == set(range(5)), "one per stratum"
    again = resolve_sweep(
        experiment.hyper_params, resolved.flow_parameters()["grid"], settings, None, name="exp"
    )
    assert [m.run_id for m in again.members] == [m.run_id for m in resolved.members]
    _, longer, _ = read_sweep_file(path, ["seed=0..3"])
    assert (
        len(resolve_sweep(experiment.hyper_params, longer, settings, None, name="e").members) == 20
    )


def test_a_strategy_without_further_values_refuses_a_grid(folder: Path) -> None:
    path = write(folder, "Fixed")
    with pytest.raises(ParameterError, match=r"Fixed cannot be combined with a grid"):
        read_sweep_file(path, ["seed=0,1"])
    _, spec, _ = read_sweep_file(path, ["rl.lr=0.5"])
    assert spec.points() == [{"rl.num_epochs": 1}]


def test_other_classes_and_points_with_settings_are_refused(folder: Path) -> None:
    section = {"kind": "custom_sweep.py:Fixed", "parameters": {"settings.retries": [1]}}
    with pytest.raises(ParameterError, match="settings"):
        read_sweep_spec(section, folder)
    with pytest.raises(UnknownNameError, match="no class 'Path'"):
        read_sweep_spec({"kind": "custom_sweep.py:Path"}, folder)
