"""The reference of parameters covers the defaults, aliases and prose of plug-ins' sections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import Field

from ratchet.parameters.base import SECTIONS, SubParameters, register_parameters
from ratchet.parameters.reference import DocumentedParameter, find_parameters

NAME = "documented_plug_in"


class PlugIn(SubParameters):
    """A plug-in's section.

    ``folder`` is relative, e.g. ``RUNS/x``; absolute paths are refused. ``words`` are counted.
    """

    folder: Path = Path("x")
    words: frozenset[str] = frozenset({"a"})
    rate: float = Field(default=0.5, alias="lr")


@pytest.fixture
def documented() -> Iterator[dict[str, DocumentedParameter]]:
    register_parameters(NAME)(PlugIn)
    try:
        yield {each.path: each for _, each in find_parameters([f"{NAME}."])}
    finally:
        del SECTIONS[NAME]


def test_defaults_without_a_json_type_are_shown(documented: dict[str, DocumentedParameter]) -> None:
    assert documented[f"{NAME}.folder"].default == '"x"'
    assert "'a'" in documented[f"{NAME}.words"].default


def test_a_field_with_an_alias_is_listed(documented: dict[str, DocumentedParameter]) -> None:
    assert (documented[f"{NAME}.rate"].type, documented[f"{NAME}.rate"].default) == ("float", "0.5")


def test_a_sentence_ends_neither_at_eg_nor_at_a_semicolon(
    documented: dict[str, DocumentedParameter],
) -> None:
    about = documented[f"{NAME}.folder"].description
    assert about == "folder is relative, e.g. RUNS/x; absolute paths are refused."
