"""Scripted local services and their responses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.language_models.retrying import RetryPolicy

sys.path.insert(0, str(Path(__file__).parent))

from local_services import (
    QUICK,
    Answer,
    FineTuneService,
    LocalService,
    chat_answer,
    error_body,
)


@pytest.fixture
def service() -> Iterator[LocalService]:
    """A chat service."""
    service = LocalService()
    yield service
    service.close()


@pytest.fixture
def fine_tune_service() -> Iterator[FineTuneService]:
    """A fine-tune service."""
    service = FineTuneService()
    yield service
    service.close()


@pytest.fixture
def quick() -> RetryPolicy:
    """A policy without long delays."""
    return QUICK


@pytest.fixture
def answer() -> type[Answer]:
    """A service's response."""
    return Answer


@pytest.fixture
def chat() -> Any:
    """Build the body of a completion."""
    return chat_answer


@pytest.fixture
def error() -> Any:
    """Build the body of an error."""
    return error_body
