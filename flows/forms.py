"""Forms of deployments in Prefect's UI: schemas of fields, submitted values, flow run names.

Prefect's UI builds a form from the schemas, and its server refuses values that don't match them.
Submitted values become overrides, which are validated like those of the command line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast
from uuid import UUID

from coolname.data import config as word_lists  # Prefect generates names from them
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from pydantic_core import MISSING, PydanticOmit

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

    from ratchet.parameters.hyper_parameters import HyperParameters


Schema: TypeAlias = dict[str, Any]
_MAX_CHOICES = 200


@dataclass(frozen=True)
class Form:
    """Annotation of a flow's parameter: its description in the form, and its JSON schema.

    Without a schema, the form does not show the parameter.
    """

    description: str
    schema: Callable[[], Schema] | None

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> Schema:
        if self.schema is None:
            raise PydanticOmit
        return {**self.schema(), "description": self.description}


def experiment_files() -> Schema:
    """Schema of an experiment file: one of the folder ``experiments``, or another path."""
    paths = [str(path) for path in sorted(Path("experiments").rglob("*.y*ml"))]
    return _choice("found", paths, "another file")


def runs() -> Schema:
    """Schema of a run: one that existed at the deployment's registration, or another id."""
    paths = [path for path in Path("runs").glob("*/manifest.json")]
    newest = sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)
    return _choice("found", [path.parent.name for path in newest], "another run")


def protocols() -> Schema:
    """Schema of a protocol: a registered one, or a class in a file."""
    from ratchet.protocols.registry import PROTOCOLS

    return _choice("registered", PROTOCOLS.names(), "file.py:Class")


def trainers(names: Sequence[str] | None = None) -> Schema:
    """Schema of a trainer: a registered one (by default any), or a class in a file."""
    from trainers.registry import TRAINERS

    return _choice("registered", TRAINERS.names() if names is None else names, "file.py:Class")


def analysers() -> Schema:
    """Schema of an analyser: a registered one, or a class in a file."""
    from ratchet.analysis.base import analyser_names

    return _choice("registered", analyser_names(), "file.py:Class")


def integer(minimum: int) -> Callable[[], Schema]:
    """Return the schema of an integer of at least ``minimum``."""
    return lambda: {"type": "integer", "minimum": minimum}


def amount() -> Schema:
    """Schema of a number above zero."""
    return {"type": "number", "exclusiveMinimum": 0}


def text() -> Schema:
    """Schema of a text."""
    return {"type": "string"}


def yes_or_no() -> Schema:
    """Schema of a Boolean."""
    return {"type": "boolean"}


def list_of(item: Callable[[], Schema]) -> Callable[[], Schema]:
    """Return the schema of a list without duplicates."""
    return lambda: {"type": "array", "items": item(), "uniqueItems": True}


def assignments() -> Schema:
    """Schema of a list of ``a.b=value``, as on the command line."""
    return {"type": "array", "items": {"type": "string", "pattern": r"^[^=]+=.*$|^~.+$"}}


def _choice(title: str, names: Iterable[str], other: str) -> Schema:
    listed: Sequence[str] = [*names][:_MAX_CHOICES]
    free = {"type": "string", "title": other, "minLength": 1}
    if not listed:
        return free
    return {"anyOf": [{"type": "string", "title": title, "enum": listed}, free]}


LEFT_OUT: Any = MISSING
"""Default of an optional field: the form shows it empty and submits no value for it."""
_Given = TypeVar("_Given")
ITERATIONS = "rl.num_iterations"
BUDGET = "settings.budget"


def overrides(
    top: Mapping[str, Any],
    sections: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    others: Sequence[str] | None = None,
) -> list[str]:
    """Return overrides without empty fields: of sections, then top fields, then ``others``.

    The last override of a parameter counts.

    Parameters
    ----------
    top
        Dotted path → value.
    sections, settings
        Values by section, in ``agents`` by agent: of each the fields or a list of ``name=value``.
    others
        Overrides in the command line's syntax.
    """
    parts = {**given(sections, {}), "settings": settings}
    agents = given(parts.pop("agents", None), {})
    parts |= {f"agents.{name}": value for name, value in agents.items()}
    lists = {name: parts.pop(name) for name in list(parts) if isinstance(parts[name], list)}
    fields = {**dict(_leaves(parts)), **dict(_leaves(top))}
    texts = [f"{path}={_to_json(value)}" for path, value in fields.items()]
    lines = [f"{name}.{line}" for name, several in lists.items() for line in several]
    return [*texts, *lines, *given(others, ())]


def given(value: _Given | None, otherwise: _Given) -> _Given:
    """Return a field's value, or ``otherwise`` if it is empty."""
    return otherwise if value is None or value is LEFT_OUT else value


def values(path: str, several: Iterable[Any] | None) -> list[str]:
    """Return a sweep's dimension, ``a.b=1,2``; an empty list if no value was chosen."""
    chosen = ",".join(_to_json(value) for value in given(several, ()))
    return [f"{path}={chosen}"] if chosen else []


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        elif given(value, []) != []:
            yield f"{prefix}{name}", value


def _to_json(value: object) -> str:
    """Return JSON that is also YAML, which has no surrogate pairs, as in an escaped emoji."""
    return json.dumps(value, ensure_ascii=False)


_MAX_LENGTH = 100
_GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|omicron|pi|rho|sigma"
    "|tau|upsilon|phi|chi|psi|omega"
)
_UI_NAME = re.compile(rf"(?:{_GREEK})\d*-[a-z]+(?:-[a-z]+)*")
"""Names that the UI generates for an empty field, such as "nu4-wilson"."""


def describe(file: str, changes: Iterable[str], verb: str = "") -> str:
    """Describe a run, e.g. "demo seed=3" or "sweep demo seed=0..4"; settings are omitted."""
    relevant = (change for change in changes if not change.startswith("settings."))
    text = " ".join([verb, Path(file).stem, *relevant]).strip()
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"


def chosen_name(flow_run_name: str, description: str) -> str:
    """Return a flow run's name: the given one if the user typed it, else the description.

    A name in the style of the UI may be generated or typed; it is appended to the description.
    """
    words = flow_run_name.split("-")
    if len(words) == 2 and _generated_words().issuperset(words):
        return description
    if _UI_NAME.fullmatch(flow_run_name):
        return f"{description} ({flow_run_name})"
    return flow_run_name


async def name_flow_run(description: str, tags: Sequence[str]) -> None:
    """Set the name and tags of the current flow run."""
    run_id, current_name = flow_run.get_id(), str(flow_run.get_name())
    if run_id is None:
        return
    name = chosen_name(current_name, description)
    existing = list(flow_run.get_tags())
    every = [*existing, *(tag for tag in tags if tag not in existing)]
    if name != current_name or every != existing:
        async with get_client() as client:
            await client.update_flow_run(UUID(run_id), name=name, tags=every)


def tags_of(name: str, hyper_params: HyperParameters, *others: str) -> list[str]:
    """Return the tags of a run: its experiment, scenario, trainer and protocol, and others."""
    return [
        f"experiment:{name}",
        f"scenario:{hyper_params.scenario}",
        f"trainer:{hyper_params.trainer_name}",
        f"protocol:{hyper_params.interaction_protocol}",
        *others,
    ]


@cache
def _generated_words() -> frozenset[str]:
    lists = cast("dict[str, dict[str, list[str]]]", word_lists)
    return frozenset(word for each in lists.values() for word in each.get("words", ()))
