"""The nested parts of a form: every section of the hyper-parameters, and the settings.

A section is folded until one opens it. What is left empty stays as the experiment file has it, so
that no field has a value of its own; the default is said beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flows.forms.fields import Schema
from ratchet.parameters.reference import documented_sections

if TYPE_CHECKING:
    from ratchet.parameters.reference import DocumentedSection

FOLDED = "as in the file"
_LEFT_OUT = frozenset({"$defs", "default", "required"})
_OF_A_FILE = frozenset({"base_dir", "run_id", "parent_run_id", "budget", "progress"})
"""Settings that the flow chooses, or the form asks for elsewhere."""


def sections() -> Schema:
    """Return the schema of all registered sections, each of which may be left folded."""
    found = [each for each in documented_sections() if each.kind == "section"]
    return {"type": "object", "properties": {each.name: _folded(each) for each in found}}


def settings() -> Schema:
    """Return the schema of the settings."""
    (found,) = (each for each in documented_sections() if each.kind == "settings")
    return _folded(found, _OF_A_FILE)


def _folded(section: DocumentedSection, left_out: frozenset[str] = frozenset()) -> Schema:
    opened = {"title": "change", **_section(section, left_out)}
    return {"title": section.name, "anyOf": [{"type": "null", "title": FOLDED}, opened]}


def _section(section: DocumentedSection, left_out: frozenset[str]) -> Schema:
    schema = _model_of(section).model_json_schema()
    fields = {}
    for parameter in section.parameters:
        name = parameter.path.rpartition(".")[2]
        if name in left_out:
            continue
        field = _plain(schema["properties"][name], schema.get("$defs", {}))
        own = f"{parameter.about} " if name in parameter.about else ""  # else the section's
        about = f"{own}Default: {parameter.default}."
        fields[name] = {**field, "title": name, "description": about}
    return {"type": "object", "properties": fields, "additionalProperties": False}


def _model_of(section: DocumentedSection) -> Any:  # noqa: ANN401 -- a class of pydantic's
    from ratchet.parameters.base import SECTIONS
    from ratchet.parameters.settings import ExperimentSettings

    return ExperimentSettings if section.kind == "settings" else SECTIONS[section.name].model


def _plain(node: Any, definitions: Mapping[str, Any]) -> Any:  # noqa: ANN401 -- any JSON
    """Return a schema without references, defaults, and the choice of nothing: an empty field."""
    if isinstance(node, list):
        return [_plain(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        found = definitions[node["$ref"].rpartition("/")[2]]
        return _plain({**found, **{k: v for k, v in node.items() if k != "$ref"}}, definitions)
    if "anyOf" in node:
        kinds = [each for each in node["anyOf"] if each.get("type") != "null"]
        if len(kinds) == 1:
            rest = {name: value for name, value in node.items() if name != "anyOf"}
            return _plain({**kinds[0], **rest}, definitions)
    plain = {name: _plain(v, definitions) for name, v in node.items() if name not in _LEFT_OUT}
    if "properties" in plain and "required" in node:
        plain["required"] = node["required"]
    return plain
