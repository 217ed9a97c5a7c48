"""The tiny experiment for all tests of trainers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    """Factories of parameters, scenario and trainer; see ``tiny_experiment.py``."""
    path = Path(__file__).with_name("tiny_experiment.py")
    spec = importlib.util.spec_from_file_location("tiny_experiment", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
