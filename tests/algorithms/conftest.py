"""Games with exact derivatives, as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def games() -> ModuleType:
    """Games whose derivatives are known; see ``games.py``."""
    path = Path(__file__).with_name("games.py")
    spec = importlib.util.spec_from_file_location("exact_games", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["exact_games"] = module
    spec.loader.exec_module(module)
    return module
