"""The example of pixels and memory: recurrent agents solve it, others guess."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from ratchet.experiment_files.loading import load_experiment
from trainers.compatibility import check_combination

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("recall_example", ROOT / "examples" / "recall.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["recall_example"] = module
    spec.loader.exec_module(module)
    return module


def test_an_agent_learns_from_pixels_what_to_remember(example):
    assert example.train(10) >= 0.9
    assert example.train(1, recurrence=None) <= 0.7


@pytest.mark.parametrize("name", ["recall", "simple_spread_shared"])
def test_the_experiments_can_be_run_and_filmed(name):
    loaded = load_experiment(str(ROOT / "experiments" / f"{name}.yaml"), [])
    check_combination(loaded.hyper_params, loaded.settings.base_dir)
