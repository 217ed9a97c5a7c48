"""The small experiments for all tests of TorchRL's trainers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def small() -> ModuleType:
    """Factories of small trainers; see ``small_trainers.py``."""
    path = Path(__file__).with_name("small_trainers.py")
    spec = importlib.util.spec_from_file_location("small_trainers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
