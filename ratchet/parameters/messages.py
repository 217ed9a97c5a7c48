"""Turn pydantic's errors into ours: dotted path, value, what was expected, nearest name."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from ratchet.errors import nearest


def describe_validation_error(
    error: ValidationError, *, prefix: str = "", model: type[BaseModel] | None = None
) -> str:
    """Write one line for each thing that is wrong.

    Parameters
    ----------
    error
        What pydantic found.
    prefix
        Dotted path of the section that was validated.
    model
        The section's model, for the nearest name of an unknown key.
    """
    lines = []
    for problem in error.errors(include_url=False):
        parts = [prefix, *(str(part) for part in problem["loc"])]
        path = ".".join(part for part in parts if part)
        lines.append(f"{path}: {_describe(problem, model)}")
    return "\n".join(dict.fromkeys(lines))


def _describe(problem: Any, model: type[BaseModel] | None) -> str:  # noqa: ANN401
    if problem["type"] == "extra_forbidden":
        known = list(model.model_fields) if model is not None else []
        name = str(problem["loc"][-1])
        return f"unknown parameter (value {problem['input']!r}).{nearest(name, known)}"
    if problem["type"] == "missing":
        return "missing, but required. Add it to the experiment file."
    return f"got {problem['input']!r} ({type(problem['input']).__name__}). {problem['msg']}."
