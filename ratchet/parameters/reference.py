"""Documentation of every parameter: path, type, default, purposes and description.

``ratchet list parameters`` and the site's reference use it. Does not import torch.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ratchet.parameters.base import AGENT_MODELS, SECTIONS, Reference, SubParameters
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.phases import PartnerParameters, PhaseParameters
from ratchet.parameters.purposes import declared_purposes
from ratchet.parameters.reading.discovery import load_plugins
from ratchet.parameters.settings import ExperimentSettings

_ANY_AGENT = "agents.NAME."
_ENTRY = re.compile(
    r"^- ``(?P<name>\w+)``: (?P<text>.+?)(?=\n- |\n\n|\Z)", re.MULTILINE | re.DOTALL
)
"""A field's own sentence in its section's docstring: a list item that starts with its name."""
_ANY = "any"
_NAMES = {"integer": "int", "number": "float", "string": "str", "boolean": "bool"}
_NAMES |= {"array": "list", "object": "map", "null": "null"}
_ROLE = re.compile(r":\w+:`~?\.?([^`]+)`")


@dataclass(frozen=True)
class DocumentedParameter:
    """One parameter.

    Attributes
    ----------
    path
        Its dotted path, as on the command line.
    default
        Empty for a section, whose fields have defaults.
    description
        Its own sentence: its entry in its section's docstring, or the sentences that name it.
    """

    path: str
    type: str
    default: str
    read_for: tuple[str, ...]
    description: str


@dataclass(frozen=True)
class DocumentedSection:
    """A section with its parameters in order; ``kind`` is its position in experiment files."""

    kind: str
    name: str
    text: str
    parameters: tuple[DocumentedParameter, ...]


def documented_sections() -> Iterator[DocumentedSection]:
    """Yield the top level, all sections, the agents of each scenario, phases and the settings."""
    load_plugins()
    yield _section("top", "", HyperParameters, "")
    for name, section in sorted(SECTIONS.items()):
        yield _section("section", name, section.model, f"{name}.")
    for scenario, model in sorted(AGENT_MODELS.items()):
        yield _section("agents", scenario, model, _ANY_AGENT)
    yield _section("phases", "phases", PhaseParameters, "phases.NAME.")
    yield _section("phases", "partners", PartnerParameters, "phases.NAME.partners.AGENT.")
    yield _section("settings", "settings", ExperimentSettings, "settings.")


def find_parameters(words: list[str]) -> list[tuple[DocumentedSection, DocumentedParameter]]:
    """Return the parameters whose paths or descriptions have words that start with all given ones.

    Case is ignored; without words, return all parameters.
    """
    starts = [re.compile(rf"(?<![^\W_]){re.escape(word)}", re.IGNORECASE) for word in words]
    return [
        (section, parameter)
        for section in documented_sections()
        for parameter in section.parameters
        if all(
            each.search(f"{section.name} {parameter.path} {parameter.description}")
            for each in starts
        )
    ]


def _section(kind: str, name: str, model: type[BaseModel], prefix: str) -> DocumentedSection:
    prose = inspect.cleandoc(model.__doc__ or "").split("\n\nRaises\n")[0]
    text = _ENTRY.sub("", prose).strip()
    return DocumentedSection(kind, name, text, tuple(_parameters(model, prefix)))


def _parameters(model: type[BaseModel], prefix: str) -> Iterator[DocumentedParameter]:
    """Yield the fields of a model, each section followed by its fields."""
    purposes = declared_purposes(model)
    schema = model.model_json_schema(by_alias=False)
    for field, info in model.model_fields.items():
        yield DocumentedParameter(
            path=f"{prefix}{field}",
            type="section" if _is_section(info) else _kind(schema["properties"][field]),
            default="" if _is_section(info) else _default(info),
            read_for=tuple(sorted(each.value for each in purposes.get(field) or ())),
            description=_description(model, field),
        )
        for inner, name in _sections_in(info):
            yield from _parameters(inner, f"{prefix}{field}.{name}")


def _sections_in(field: FieldInfo) -> Iterator[tuple[type[SubParameters], str]]:
    """Yield the section that a field is, or the one that its mapping has by name."""
    inner, name = field.annotation, ""
    if get_origin(inner) is dict:
        inner, name = get_args(inner)[1], "NAME."
    if isinstance(inner, type) and issubclass(inner, SubParameters) and inner is not Reference:
        yield inner, name


def _is_section(field: FieldInfo) -> bool:
    return any(not name for _, name in _sections_in(field))


def _description(model: type[BaseModel], field: str) -> str:
    """Return a field's entry in the docstring of the nearest class, else the sentences with it."""
    for base in model.__mro__:
        if "__doc__" in vars(base) and issubclass(base, BaseModel):
            text = inspect.cleandoc(base.__doc__ or "")
            entries = [each["text"] for each in _ENTRY.finditer(text) if each["name"] == field]
            prose = re.split(r"(?<=\.)(?<!e\.g\.)\s+(?=[A-Z`])|\n\n", _ENTRY.sub("", text))
            sentences = entries or [each for each in prose if f"``{field}``" in each]
            if sentences:
                plain = plain_text(" ".join(sentences)).rstrip(".;")
                return f"{plain[0].upper() if entries else plain[0]}{plain[1:]}."
    return ""


def plain_text(text: str) -> str:
    """Return a docstring's text on one line, without roles and literals."""
    return " ".join(_ROLE.sub(r"\1", text).replace("``", "").split())


def _kind(schema: Mapping[str, Any]) -> str:
    """Return the type and the bounds of a JSON schema in readable form."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return _ANY if name == "JsonValue" else name
    if several := schema.get("anyOf", schema.get("oneOf")):
        return " | ".join(map(_kind, several))
    if "enum" in schema or "const" in schema:
        return " | ".join(map(str, schema.get("enum", [schema.get("const")])))
    kind = _NAMES.get(schema.get("type", ""), _ANY)
    if kind == "list" and "items" in schema:
        return f"list of {_kind(schema['items'])}"
    if kind == "map" and isinstance(inner := schema.get("additionalProperties"), dict) and inner:
        return f"map of {_kind(inner)}"
    return f"{kind}{_bounds(schema)}"


def _bounds(schema: Mapping[str, Any]) -> str:
    """Return the bounds of a number, as " > 0" or " in [0, 1)"."""
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    lower = f"({above}" if low is None else f"[{low}"
    upper = f"{below})" if high is None else f"{high}]"
    match (low is None and above is None, high is None and below is None):
        case (True, True):
            return ""
        case (False, True):
            return f" > {above}" if low is None else f" ≥ {low}"
        case (True, False):
            return f" < {below}" if high is None else f" ≤ {high}"
    return f" in {lower}, {upper}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is PydanticUndefined:
        value = field.default_factory() if field.default_factory is not None else None  # type: ignore[call-arg] # no factory takes data
    return value_text(value.model_dump(mode="json") if isinstance(value, BaseModel) else value)


def value_text(value: object) -> str:
    """Return a value as in the documentation of defaults."""
    return (value or '""') if isinstance(value, str) else json.dumps(value, default=str)
