"""Documentation of every parameter: path, type, default, purposes and description.

``ratchet list parameters`` and the site's reference use it. Does not import torch.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ratchet.parameters.base import AGENT_MODELS, SECTIONS, SubParameters
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.phases import PartnerParameters, PhaseParameters
from ratchet.parameters.purposes import declared_purposes
from ratchet.parameters.reading.discovery import load_plugins
from ratchet.parameters.settings import ExperimentSettings

_ANY_AGENT = "agents.NAME."
_VALIDATOR = re.compile(r", (?:Before|After)Validator\(.*?\)(?=\])")
_ROLE = re.compile(r":\w+:`~?\.?([^`]+)`")


@dataclass(frozen=True)
class DocumentedParameter:
    """One parameter.

    Attributes
    ----------
    path
        Its dotted path, as on the command line.
    about
        The sentences about it in its section's docstring, or the section's first sentence.
    """

    path: str
    type: str
    default: str
    read_for: tuple[str, ...]
    about: str


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
    """Return the parameters with all words in their path or description.

    Case is ignored; without words, return all parameters.
    """
    wanted = [word.lower() for word in words]
    return [
        (section, parameter)
        for section in documented_sections()
        for parameter in section.parameters
        if all(word in f"{section.name} {_searched(parameter)}".lower() for word in wanted)
    ]


def _searched(parameter: DocumentedParameter) -> str:
    return f"{parameter.path} {parameter.about}"


def _section(kind: str, name: str, model: type[BaseModel], prefix: str) -> DocumentedSection:
    text = inspect.cleandoc(model.__doc__ or "").split("\n\nRaises\n")[0]
    return DocumentedSection(kind, name, text, tuple(_parameters(model, prefix)))


def _parameters(model: type[BaseModel], prefix: str) -> Iterator[DocumentedParameter]:
    """Yield the fields of a model, each section followed by its fields."""
    purposes = declared_purposes(model)
    for field, info in model.model_fields.items():
        yield DocumentedParameter(
            path=f"{prefix}{field}",
            type=_kind(info),
            default=_default(info),
            read_for=tuple(sorted(each.value for each in purposes.get(field) or ())),
            about=_about(model, field),
        )
        if prefix == _ANY_AGENT and isinstance(info.default, SubParameters):
            yield from _parameters(type(info.default), f"{prefix}{field}.")


def _about(model: type[BaseModel], field: str) -> str:
    """Return the sentences that name a field, from the nearest class; else the first sentence."""
    for base in model.__mro__:
        if "__doc__" in vars(base) and issubclass(base, BaseModel):
            sentences = _sentences(inspect.cleandoc(base.__doc__ or ""))
            found = [each for each in sentences if f"``{field}``" in each]
            if found:
                return _plain(" ".join(found))
    return _plain(_sentences(inspect.cleandoc(model.__doc__ or "")).pop(0))


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.;])\s+(?=[A-Z`])|\n\n", text) or [""]


def _plain(text: str) -> str:
    return " ".join(_ROLE.sub(r"\1", text).replace("``", "").split())


def _kind(field: FieldInfo) -> str:
    """Return a field's type in readable form."""
    kind = field.annotation
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    for prefix in ("typing.", "ratchet.parameters.", "ratchet.scenarios."):
        name = name.replace(prefix, "")
    return _VALIDATOR.sub("", name)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is PydanticUndefined:
        value = field.default_factory() if field.default_factory is not None else None  # type: ignore[call-arg] # no factory takes data
    if isinstance(value, BaseModel):
        return "its own"
    return (value or '""') if isinstance(value, str) else str(value)
