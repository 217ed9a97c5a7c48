"""A tiny text experiment for every test here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def tiny_text():
    import tiny_text

    return tiny_text
