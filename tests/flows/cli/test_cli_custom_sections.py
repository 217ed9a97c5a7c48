"""Sections registered by a user's file are parsed in the experiment file like built-in ones."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from flows.planning.plan import plan
from flows.runs.resolve import resolve_file
from ratchet.parameters import HyperParameters
from ratchet.parameters.base import SECTIONS
from ratchet.plugins import MODULE_PREFIX
from trainers.registry import TRAINERS, trainer_class

TRAINER = """
from pydantic import PositiveFloat

from ratchet.parameters import SubParameters, register_parameters
from ratchet.parameters.purposes import Purpose
from trainers import register_trainer
from trainers.tensordict.vanilla_ppo import VanillaPpoTrainer


@register_parameters("stepping", trainers=("stepper",))
class Stepping(SubParameters, read_for=Purpose.LEARNING):
    step: PositiveFloat = 0.5
    bold: bool = False


@register_trainer("stepper")
class Stepper(VanillaPpoTrainer):
    pass
"""
EXPERIMENT = """
scenario: binary_erasure_channel
trainer: stepper.py:Stepper
dataset: generated
rl: {num_iterations: 1, frames_per_batch: 16}
settings: {tracking: false}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Write an experiment and a trainer to one folder; remove the registrations afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("stepper.py").write_text(TRAINER)
    Path("own.yaml").write_text(EXPERIMENT)
    yield tmp_path
    SECTIONS.pop("stepping", None)
    TRAINERS._classes.pop("stepper", None)
    for name in [n for n in sys.modules if n == "stepper" or n.startswith(MODULE_PREFIX)]:
        del sys.modules[name]


def keys(*overrides):
    return {stage.stage: stage.key for stage in plan(resolve_file("own.yaml", overrides))}


def test_a_custom_section_is_accepted_in_the_file_and_on_the_command_line():
    with Path("own.yaml").open("a") as file:
        file.write("stepping: {step: 0.25}\n")
    assert resolve_file("own.yaml").arms["main"].stepping.to_dict() == {"step": 0.25, "bold": False}
    changed = resolve_file("own.yaml", ["stepping.step=2", "stepping.bold=true"])
    assert changed.arms["main"].stepping.to_dict() == {"step": 2.0, "bold": True}


def test_a_custom_section_enters_training_keys_but_not_data_keys():
    before, after = keys(), keys("stepping.step=0.75")
    assert before["build_scenario"] == after["build_scenario"]
    assert before["train"] != after["train"]


def test_a_default_section_does_not_change_the_run_id():
    first = resolve_file("own.yaml").run_id
    plan(resolve_file("own.yaml"))
    assert resolve_file("own.yaml").run_id == first
    assert resolve_file("own.yaml", ["stepping.step=0.5"]).run_id == first


def test_an_arm_may_have_a_section():
    with Path("own.yaml").open("a") as file:
        file.write("stepping: {step: 0.25}\narms: {bold: {trainer: 'stepper.py:Stepper'}}\n")
    resolved = resolve_file("own.yaml", ["trainer=vanilla_ppo", "arms.bold.stepping.bold=true"])
    assert resolved.arms["bold"].stepping.to_dict() == {"step": 0.25, "bold": True}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["stepping.stp=1"], "stepping.stp: unknown parameter (value 1). Did you mean 'step'?"),
        (
            ["stepping.step=-1"],
            "stepping.step: got -1 (an integer). Input should be greater than 0.",
        ),
        (["steping.step=1"], "Did you mean 'stepping'?"),
        (["step=1"], "step: unknown parameter (value 1). Did you mean stepping.step?"),
        (["trainer=no.py:Stepper", "stepping.step=1"], "a missing file"),
    ],
)
def test_mistakes_in_a_custom_section_are_reported_as_in_built_in_sections(overrides, expected):
    result = CliRunner().invoke(app, ["plan", "own.yaml", *overrides])
    assert result.exit_code == 2
    assert expected in result.stderr


@pytest.mark.parametrize("imported_first", [True, False])
def test_a_trainer_imported_and_given_by_path_is_one_class(imported_first):
    if not imported_first:
        resolve_file("own.yaml")
    own = importlib.import_module("stepper")
    resolved = resolve_file("own.yaml")
    stages = [stage.key for stage in plan(resolved)]
    by_path = trainer_class(resolved.arms["main"], Path.cwd())
    assert by_path.__qualname__ == own.Stepper.__qualname__
    section = own.Stepping(step=3)
    again = HyperParameters(**{**resolved.arms["main"].to_dict(), "stepping": section})
    assert again.stepping.step == 3
    assert TRAINERS.find("stepper").__qualname__ == "Stepper"
    assert [stage.key for stage in plan(resolve_file("own.yaml"))] == stages
