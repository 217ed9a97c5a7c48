"""Fixture with the module of games with exact derivatives."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def games() -> ModuleType:
    """Module ``games.py``: games with exact derivatives."""
    path = Path(__file__).with_name("games.py")
    spec = importlib.util.spec_from_file_location("exact_games", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["exact_games"] = module
    spec.loader.exec_module(module)
    return module
