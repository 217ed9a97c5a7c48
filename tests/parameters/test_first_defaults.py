"""A default changes only with a row in the table of changed defaults.

``first_defaults.json`` has the first default of every parameter of Ratchet's sections and agents.
"""

from __future__ import annotations

import json
from pathlib import Path

from ratchet.parameters import identity
from ratchet.parameters.base import SECTIONS
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.reading.discovery import agent_model, load_plugins
from ratchet.scenarios.registry import SCENARIOS

FILE = Path(__file__).with_name("first_defaults.json")


def current_defaults() -> dict[str, object]:
    load_plugins()
    names = [n for n in SCENARIOS.names() if SCENARIOS.find(n).__module__.startswith("ratchet.")]
    scenarios = {name: agent_model(name) for name in names}
    top = HyperParameters.model_fields
    values = {name: f.default for name, f in top.items() if not f.is_required()}
    leaves = _leaves(json.loads(json.dumps(values)), "")
    for name, section in SECTIONS.items():
        if section.model.__module__.startswith("ratchet."):
            leaves |= _leaves(section.model().to_dict(), f"{name}.")
    for scenario, model in scenarios.items():
        leaves |= _leaves(model().to_dict(), f"{scenario}:agents._default.")
    return leaves


def _leaves(values: dict[str, object], path: str) -> dict[str, object]:
    leaves: dict[str, object] = {}
    for name, value in values.items():
        nested = isinstance(value, dict) and value
        leaves |= _leaves(value, f"{path}{name}.") if nested else {f"{path}{name}": value}
    return leaves


def test_every_changed_default_has_a_row():
    first, current = json.loads(FILE.read_text()), current_defaults()
    added = {path: value for path, value in current.items() if path not in first}
    assert not added, f"add to {FILE.name}: {json.dumps(added)}"
    expected = {path: value for path, value in first.items() if path in current}
    for path, value in expected.items():
        name = path.partition(":")[2] or path
        for change in identity.CHANGED_DEFAULTS:
            if change.path == name.replace("agents._default.", "agents.*.") and change.old == value:
                value = expected[path] = change.new
    changed = {path: (expected[path], current[path]) for path in expected}
    changed = {path: pair for path, pair in changed.items() if pair[0] != pair[1]}
    assert not changed, "defaults (first, current) without a row in CHANGED_DEFAULTS"


def test_first_defaults_are_those_that_identify_an_experiment():
    first = json.loads(FILE.read_text())
    for change in identity.CHANGED_DEFAULTS:
        path = change.path.replace("agents.*.", "agents._default.")
        known = [value for name, value in first.items() if name.partition(":")[2] == path]
        assert {*known} == {change.old}
