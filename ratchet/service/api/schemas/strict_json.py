"""JSON schemas without additional properties.

JSON that fits the closed schema also fits the open one. Small models that may invent properties
keep inventing them until their token limit.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

_NAMED = ("properties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "prefixItems")
_COMBINING = ("allOf", "not", "if", "dependentSchemas")
_SHARING = ("properties", "anyOf", "oneOf", "$ref")


def closed(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Close all objects that name properties and do not mention additional ones.

    A schema with ``allOf``, ``not`` or ``if``, or with ``properties`` next to ``anyOf``, is
    unchanged: its parts do not describe complete objects.
    """
    return dict(schema) if _combines(schema) else _closed(schema)


def _closed(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    content = dict(schema)
    for name, value in schema.items():
        if name in _NAMED and isinstance(value, dict):
            content[name] = {key: _any_closed(item) for key, item in value.items()}
        elif name in _LISTED and isinstance(value, list):
            content[name] = [_any_closed(item) for item in value]
        elif name == "items":
            content[name] = _any_closed(value)
    if "properties" in schema and "patternProperties" not in schema:
        content.setdefault("additionalProperties", False)
    return content


def _any_closed(value: JsonValue) -> JsonValue:
    return _closed(value) if isinstance(value, dict) else value


def _combines(value: object) -> bool:
    if isinstance(value, Mapping):
        named = any(name in value for name in _COMBINING)
        shared = sum(name in value for name in _SHARING) > 1
        return named or shared or any(_combines(item) for item in value.values())
    return isinstance(value, list) and any(_combines(item) for item in value)
