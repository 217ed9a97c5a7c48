"""``ratchet list``: what there is to choose from."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.process.messages import print_plain, print_table, print_warning

if TYPE_CHECKING:
    from ratchet.registry import Entry, Registry


class Kind(StrEnum):
    """What can be listed."""

    TRAINERS = "trainers"
    PROTOCOLS = "protocols"
    SCENARIOS = "scenarios"
    NETWORKS = "networks"
    ANALYSERS = "analysers"
    ENVIRONMENTS = "environments"
    CALLBACKS = "callbacks"
    EXPERIMENTS = "experiments"


_REGISTRIES = {
    Kind.TRAINERS: "trainers.registry",
    Kind.PROTOCOLS: "ratchet.protocols.registry",
    Kind.SCENARIOS: "ratchet.scenarios.registry",
    Kind.NETWORKS: "ratchet.agents.networks.registry",
    Kind.ANALYSERS: "ratchet.analysis.registry",
    Kind.ENVIRONMENTS: "ratchet.scenarios.gymnasium.registry",
    Kind.CALLBACKS: "trainers.callbacks.registry",
}
"""Where the registry of a kind is, under the kind's name in capitals. None imports torch."""


def list_names(kind: Annotated[Kind, typer.Argument(help="What to list.")]) -> None:
    """List what there is of a kind, and where it comes from."""
    if kind is Kind.EXPERIMENTS:
        _list_experiments()
        return
    rows = [(entry.name, entry.origin) for entry in _entries(kind)]
    if rows:
        print_table("", (kind.value, "from"), rows)
    else:
        print_warning(f"There are no {kind.value} that have a name.")
    print_plain(
        "One of your own is given as path/to/file.py:ClassName; installed packages offer theirs as"
        f" entry points in the group ratchet.{kind.value}."
    )
    if kind is Kind.ENVIRONMENTS:
        print_plain("Ids of gymnasium and modules of PettingZoo are played too.")


def _entries(kind: Kind) -> list[Entry]:
    module = _REGISTRIES[kind]
    registry: Registry[object] = getattr(import_module(module), kind.name)
    return registry.entries()


def _list_experiments() -> None:
    """Show each experiment file with the first line of its header."""
    paths = sorted(Path("experiments").glob("*.y*ml"))
    for path in paths:
        with path.open(encoding="utf-8") as file:
            header = file.readline().strip()
        about = header.lstrip("# ") if header.startswith("#") else ""
        print_plain(f"{path}  {about}".rstrip())
    if not paths:
        print_warning(f"There are no experiments here ({Path.cwd()}).")
