"""Errors about parameters: dotted path, value, expectation, nearest name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from ratchet.errors import ParameterError, RatchetError, kind_of, nearest, shorten, shown
from ratchet.parameters.base import AGENT_MODELS, SECTIONS
from ratchet.parameters.compatibility.unsupported import advice_about

SECRET_VALUE = "secret_value"
"""Type of an error whose message must not repeat the value."""

_MAPPING_ERRORS = ("dict_type", "mapping_type", "model_type", "model_attributes_type")
_MAX_LINE = 1000
_MAX_MESSAGE = 1500


def describe_validation_error(
    error: ValidationError, *, prefix: str = "", model: type[BaseModel] | None = None
) -> str:
    """Write pydantic's errors, one line for each path.

    ``prefix`` is the dotted path of the validated section; its ``model`` gives the names near an
    unknown key.
    """
    problems: dict[str, list[str]] = {}
    for problem in error.errors(include_url=False):
        path, known = _resolve(problem["loc"], model)
        full_path = ".".join(part for part in (prefix, *path) if part)
        problems.setdefault(full_path, []).append(_describe(problem, full_path, known))
    lines = [
        f"{shorten(path)}: {_join(messages)}"
        for path, messages in problems.items()
        if not any(other.startswith(f"{path}.") for other in problems)
    ]
    return "\n".join(lines)


def _join(messages: list[str]) -> str:
    """Join the expectations of a union's members to one sentence."""
    first, *others = dict.fromkeys(messages)
    hints = [other.partition("Input should be ")[2] for other in others]
    if not any(hints):
        return first
    return first.removesuffix(".") + "".join(f", or {text[:-1]}" for text in hints if text) + "."


def raise_together(errors: Sequence[RatchetError]) -> None:
    """Raise errors as one, with each line once; return if the sequence is empty."""
    if not errors:
        return
    lines = dict.fromkeys(line for error in errors for line in str(error).splitlines())
    is_one = len({str(error) for error in errors}) == 1
    message = shorten_message(str(errors[0]) if is_one else "\n".join(lines))
    if is_one and message == str(errors[0]):
        raise errors[0]
    raise (type(errors[0]) if is_one else ParameterError)(message) from errors[0]


def shorten_message(message: str) -> str:
    """Shorten long lines of a message, and drop the last lines of a long one."""
    lines = [shorten(line, _MAX_LINE) for line in message.splitlines()]
    ends = accumulate(len(line) for line in lines)
    fitting = max(1, sum(end <= _MAX_MESSAGE for end in ends))
    more = [f"… and {len(lines) - fitting:,} more lines."] if fitting < len(lines) else []
    return "\n".join([*lines[:fitting], *more])


def _describe(problem: Any, path: str, known: list[str]) -> str:  # noqa: ANN401 -- ErrorDetails
    if problem["type"] == "extra_forbidden":
        return f"unknown parameter (value {shown(problem['input'])}).{suggest(path, known)}"
    if problem["type"] == "missing":
        return "missing, but required. Add it to the experiment file."
    if problem["type"] == SECRET_VALUE:
        return f"{problem['msg']}."
    value, message = problem["input"], problem["msg"]
    if problem["type"] == "union_tag_not_found":
        message = f"Expected a mapping with its {problem['ctx']['discriminator']}"
    if problem["type"] in _MAPPING_ERRORS:
        message = "Input should be a mapping"
    is_named = isinstance(value, Mapping) and "_type" in value
    advice = advice_about(f"{path}._type") if is_named else ""
    return f"got {shown(value)} ({kind_of(value)}). {shorten(message, 500)}.{advice}"


def _resolve(
    loc: tuple[int | str, ...], model: type[BaseModel] | None
) -> tuple[list[str], list[str]]:
    """Return a location as the user wrote it, and the valid names at its last part.

    Pydantic's locations contain the member of a union; the user's path does not.
    """
    path: list[str] = []
    annotation: Any = model
    known: list[str] = []
    for part in loc:
        members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else None
        if members is not None:
            annotation = _member(members, str(part))
            continue
        fields = annotation.model_fields if _is_model(annotation) else {}
        known = list(fields)
        path.append(str(part))
        annotation = fields[str(part)].annotation if str(part) in fields else None
    return path, known


def _member(members: tuple[Any, ...], tag: str) -> Any:  # noqa: ANN401 -- any type
    """Find the member of a union with pydantic's ``tag``; None if it is a plain type."""
    for member in members:
        if _is_model(member):
            kind = member.model_fields.get("kind")
            if tag in (member.__name__, kind.default if kind else None):
                return member
    return None


def _is_model(annotation: Any) -> bool:  # noqa: ANN401 -- any type
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def suggest(path: str, known: Iterable[str]) -> str:
    """Return the advice on an unknown parameter of a section with the ``known`` ones."""
    name = path.rpartition(".")[2]
    close = nearest(name, known)
    is_close = close.startswith(" Did you mean")
    other = "" if path.startswith("agents.") else elsewhere(name)  # agents have no other section
    return advice_about(path) or (close if is_close else other or close)


def suggest_at_top(
    name: str, known: Iterable[str], others: Mapping[str, type[BaseModel]] | None = None
) -> str:
    """Return the advice on an unknown top-level parameter of an experiment file.

    ``others`` are sections that are not hyper-parameters.
    """
    return advice_about(name) or elsewhere(name, others) or nearest(name, known)


def elsewhere(name: str, others: Mapping[str, type[BaseModel]] | None = None) -> str:
    """Return ``" Did you mean rl.lr?"`` with all sections that have a parameter of that name."""
    sections = {section.name: section.model for section in SECTIONS.values()}
    paths = [
        f"{section}.{name}"
        for section, model in {**sections, **(others or {})}.items()
        if name in model.model_fields
    ]
    if any(name in model.model_fields for model in AGENT_MODELS.values()):
        paths.append(f"agents._default.{name}")
    if not paths:
        return ""
    *others_there, last = paths
    return f" Did you mean {', '.join(others_there) + ' or ' if others_there else ''}{last}?"
