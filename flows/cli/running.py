"""``ratchet run``, ``resume`` and ``fork``: run an experiment and show how it goes."""

from __future__ import annotations
from typing import Annotated
import typer


def run(file: str) -> None:
    """Run."""


def resume(run: str) -> None:
    """Resume."""


def fork(run: str) -> None:
    """Fork."""
