"""``ratchet list``: what there is to choose from."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.messages import print_plain, print_warning


class Kind(StrEnum):
    """What can be listed."""

    TRAINERS = "trainers"
    PROTOCOLS = "protocols"
    SCENARIOS = "scenarios"
    EXPERIMENTS = "experiments"


def list_names(kind: Annotated[Kind, typer.Argument(help="What to list.")]) -> None:
    """List trainers, protocols, scenarios or experiment files."""
    names = _experiments() if kind is Kind.EXPERIMENTS else _registered(kind)
    for name in names:
        print_plain(name)
    if not names:
        print_warning(f"There are no {kind.value} here ({Path.cwd()}).")


def _registered(kind: Kind) -> list[str]:
    if kind is Kind.TRAINERS:
        from trainers.registry import trainer_names

        return trainer_names()
    if kind is Kind.PROTOCOLS:
        from ratchet.protocols.registry import protocol_names

        return sorted(protocol_names())
    from ratchet.parameters.base import AGENT_MODELS
    from ratchet.parameters.discovery import load_plugins

    load_plugins()
    return sorted(AGENT_MODELS)


def _experiments() -> list[str]:
    """Return each experiment file with the first line of its header."""
    lines = []
    for path in sorted(Path("experiments").glob("*.y*ml")):
        with path.open(encoding="utf-8") as file:
            header = file.readline().strip()
        about = header.lstrip("# ") if header.startswith("#") else ""
        lines.append(f"{path}  {about}".rstrip())
    return lines
