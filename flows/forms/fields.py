"""``Form``: the JSON schema of a flow's parameter, made when Prefect asks for it.

Prefect's UI makes a form of the schemas, and its server refuses what does not fit them. What fits
is read, in the end, as an experiment file is: with the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

Schema: TypeAlias = dict[str, Any]
_LISTED = 200  # a longer choice is no help


@dataclass(frozen=True)
class Form:
    """What ``Annotated`` adds to a parameter's type: what the form says of it, and its schema."""

    about: str
    schema: Callable[[], Schema]

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> Schema:
        return {**self.schema(), "description": self.about}


def experiment_files() -> Schema:
    """Choose among the experiments of the project's folder, or name another file."""
    found = [str(path) for path in sorted(Path("experiments").rglob("*.y*ml"))]
    return _choice("found", found, "another file")


def runs() -> Schema:
    """Choose among the runs that there were when the deployment was registered, or name one."""
    found = [path for path in Path("runs").glob("*/manifest.json")]
    newest = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    return _choice("found", [path.parent.name for path in newest], "another run")


def protocols() -> Schema:
    """Choose a protocol, or name a class in a file."""
    from ratchet.protocols.registry import PROTOCOLS

    return _choice("registered", PROTOCOLS.names(), "file.py:Class")


def trainers() -> Schema:
    """Choose a trainer."""
    from trainers.registry import TRAINERS

    return _choice("registered", TRAINERS.names(), "file.py:Class")


def analysers() -> Schema:
    """Choose an analyser, or name a class in a file."""
    from ratchet.analysis.registry import analyser_names

    return _choice("registered", analyser_names(), "file.py:Class")


def integer(minimum: int) -> Callable[[], Schema]:
    """Ask for an integer from ``minimum`` on."""
    return lambda: {"type": "integer", "minimum": minimum}


def amount() -> Schema:
    """Ask for a number above zero."""
    return {"type": "number", "exclusiveMinimum": 0}


def text() -> Schema:
    """Ask for a text."""
    return {"type": "string"}


def yes_or_no() -> Schema:
    """Ask for yes or no."""
    return {"type": "boolean"}


def any_object() -> Schema:
    """Ask for an object in JSON."""
    return {"type": "object"}


def list_of(item: Callable[[], Schema]) -> Callable[[], Schema]:
    """Ask for a list, none of which stands there twice."""
    return lambda: {"type": "array", "items": item(), "uniqueItems": True}


def assignments() -> Schema:
    """Ask for ``a.b=value``, as on the command line."""
    return {"type": "array", "items": {"type": "string", "pattern": r"^[^=]+=.*$|^~.+$"}}


def _choice(known: str, names: Iterable[str], other: str) -> Schema:
    listed: Sequence[str] = [*names][:_LISTED]
    free = {"type": "string", "title": other, "minLength": 1}
    if not listed:
        return free
    return {"anyOf": [{"type": "string", "title": known, "enum": listed}, free]}
