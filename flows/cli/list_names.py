"""``ratchet list``: available trainers, protocols, scenarios, parameters and so on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.process.messages import print_plain, print_table, print_warning

if TYPE_CHECKING:
    from ratchet.registry import Registry


class Kind(StrEnum):
    """Kind of listed names."""

    TRAINERS = "trainers"
    PROTOCOLS = "protocols"
    SCENARIOS = "scenarios"
    NETWORKS = "networks"
    RECURRENCES = "recurrences"
    ANALYSERS = "analysers"
    ENVIRONMENTS = "environments"
    TASKS = "tasks"
    EVALUATORS = "evaluators"
    CALLBACKS = "callbacks"
    TUNING_BACKENDS = "tuning_backends"
    SWEEPS = "sweeps"
    MIRRORS = "mirrors"
    EXPERIMENTS = "experiments"
    PARAMETERS = "parameters"


_TASKS = "ratchet.scenarios.language_task"
_REGISTRIES = {
    Kind.TRAINERS: ("trainers.registry:TRAINERS",),
    Kind.PROTOCOLS: ("ratchet.protocols.registry:PROTOCOLS",),
    Kind.SCENARIOS: ("ratchet.scenarios.registry:SCENARIOS",),
    Kind.NETWORKS: ("ratchet.agents.networks.registry:NETWORKS",),
    Kind.RECURRENCES: ("ratchet.scenarios.gymnasium.recurrence:RECURRENCES",),
    Kind.ANALYSERS: ("ratchet.analysis.base:ANALYSERS",),
    Kind.ENVIRONMENTS: (
        "ratchet.scenarios.gymnasium.registry:ENVIRONMENTS",
        f"{_TASKS}.environments.base:ENVIRONMENTS",
    ),
    Kind.TASKS: (f"{_TASKS}.sources.base:SOURCES",),
    Kind.EVALUATORS: (f"{_TASKS}.evaluators:EVALUATORS",),
    Kind.CALLBACKS: ("trainers.callbacks.registry:CALLBACKS",),
    Kind.TUNING_BACKENDS: (
        "ratchet.language_models.fine_tuning_backends.registry:TUNING_BACKENDS",
    ),
    Kind.SWEEPS: ("ratchet.parameters.sweeps:SWEEPS",),
    Kind.MIRRORS: ("ratchet.tracking.mirrors.base:MIRRORS",),
}
"""Registries of each kind. None imports torch."""


def list_names(
    kind: Annotated[
        Kind, typer.Argument(metavar="KIND", help=f"{', '.join(Kind)}.", show_choices=False)
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORDS", help="Only entries that contain all these words."),
    ] = None,
) -> None:
    """Describe trainers, protocols, parameters and other names."""
    if kind is Kind.PARAMETERS:
        _list_parameters(words or [])
        return
    if kind is Kind.EXPERIMENTS:
        _list_experiments(words or [])
        return
    registries = _registries(kind)
    several = len(registries) > 1
    rows = [
        (entry.name, *((registry.parameter,) if several else ()), entry.origin, entry.description)
        for registry in registries
        for entry in registry.entries()
        if _has(f"{entry.name} {entry.description}", words or [])
    ]
    if rows:
        parameter_columns = ("given as",) if several else ()
        print_table("", (kind.value, *parameter_columns, "from", "description"), rows)
    else:
        such = f" with {' and '.join(words)}" if words else ""
        print_warning(f"No {kind.value}{such} are registered.")
    groups = " or ".join(registry.group for registry in registries)
    print_plain(
        "Custom classes are given as path/to/file.py:ClassName, or as entry points of installed"
        f" packages in the group {groups}."
    )
    if kind is Kind.ENVIRONMENTS:
        print_plain("Ids of gymnasium and modules of PettingZoo are available too.")


def _registries(kind: Kind) -> list[Registry[object]]:
    named = (reference.partition(":") for reference in _REGISTRIES[kind])
    return [getattr(import_module(module), name) for module, _, name in named]


def _list_experiments(words: list[str]) -> None:
    """Show each experiment file with the first paragraph of its comment."""
    from ratchet.experiment_files.header import comment_lines, first_paragraph

    rows = []
    for path in sorted(Path("experiments").glob("*.y*ml")):
        description = first_paragraph(comment_lines(path))
        if _has(f"{path} {description}", words):
            rows.append((str(path), description))
    if rows:
        print_table("", ("experiment", "about"), rows)
    else:
        print_warning(f"No matching experiments in {Path.cwd() / 'experiments'}.")


def _list_parameters(words: list[str]) -> None:
    """Show the parameters with words that start with all given ones, equal ones of agents once."""
    from ratchet.parameters.reference import find_parameters

    parameters = find_parameters(words)
    if not parameters:
        print_warning(f"No parameter contains {' and '.join(words)}.")
        return
    scenarios: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for section, each in parameters:
        same = scenarios[each.path, each.type, each.default, each.description]
        same.extend([section.name] if section.kind == "agents" else ())
    columns = ("parameter", "type", "default", "description")
    records = [
        dict(zip(columns, cells, strict=True), scenarios=_listed(names))
        for cells, names in scenarios.items()
    ]
    rows = [(each["parameter"], _described(each)) for each in records]
    print_table("", ("parameter", "description"), rows, records)


def _listed(scenarios: list[str]) -> str:
    from ratchet.parameters.base import AGENT_MODELS

    return "all scenarios" if len(scenarios) == len(AGENT_MODELS) else ", ".join(scenarios)


def _described(record: Mapping[str, str]) -> str:
    """Return a parameter's description, and below it the type, default and scenarios."""
    default = f", default {record['default']}" if record["default"] else ""
    scenarios = f"; {record['scenarios']}" if record["scenarios"] else ""
    return f"{record['description']}\n{record['type']}{default}{scenarios}"


def _has(text: str, words: list[str]) -> bool:
    return all(word.lower() in text.lower() for word in words)
