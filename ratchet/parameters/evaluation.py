"""The section of evaluation suites: what a model is asked besides the experiment's own tests."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, PositiveInt

from ratchet.parameters.base import SubParameters, register_parameters
from ratchet.parameters.purposes import Purpose


def _check_task(task: str) -> str:
    """Refuse a file without a function, and a task without a package."""
    place, _, function = task.rpartition("@")
    if place.endswith(".py") and function.isidentifier():
        return task
    package, _, name = task.partition("/")
    if package and name and "@" not in task and not task.endswith(".py"):
        return task
    raise ValueError("Expected path/to/file.py@function, or package/task of an installed package")


def _check_name(name: str) -> str:
    if not name.isidentifier():
        raise ValueError("Expected letters, digits and underscores: stages are named by it")
    return name


class SuiteParameters(SubParameters, read_for=Purpose.NOTHING):
    """A task of ``inspect-ai`` that a model is evaluated on.

    ``task`` is ``path/to/file.py@function``, from the experiment file's folder, or
    ``package/task``; ``arguments`` are its own. ``files`` are what it reads beside its code: files
    and folders whose content is in the stage's key. ``when``: ``test`` after training, ``validate``
    after every ``language.validate_every`` iterations too. ``limit`` asks its first samples alone.
    ``max_tokens`` is the agent's when not given. At most ``max_connections`` answers are waited for
    at once.
    """

    task: Annotated[str, AfterValidator(_check_task)]
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    files: tuple[str, ...] = ()
    when: Literal["test", "validate"] = "test"
    limit: PositiveInt | None = None
    temperature: float = Field(default=0.0, ge=0, le=2)
    max_tokens: PositiveInt | None = None
    max_connections: PositiveInt = 10


@register_parameters("evaluation")
class EvaluationParameters(SubParameters, read_for=Purpose.NOTHING):
    """Suites of ``inspect-ai`` that language models are evaluated on, each a stage of its own.

    ``suites`` has them by name. ``python`` is the interpreter that has ``inspect-ai`` and
    ``openai``, as a path from the experiment file's folder; Ratchet's own when not given.
    They are read for nothing else: the key of a suite's stage has what is said of that suite.
    """

    suites: dict[Annotated[str, AfterValidator(_check_name)], SuiteParameters] = Field(
        default_factory=dict
    )
    python: str | None = None
