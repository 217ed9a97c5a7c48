"""Training files: JSON lines in OpenAI's two formats, checked before training.

Errors name the line and field, as in ``line 3, messages[1].role: …``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from ratchet.errors import DataError
from ratchet.language_models.service.api.errors import location_of
from ratchet.language_models.service.api.schemas.messages import (
    AssistantMessageBody,
    MessageBody,
    RequestModel,
)
from ratchet.language_models.service.training.job_folder import Method


class WeightedAssistantMessage(AssistantMessageBody):
    """An assistant message to learn, or only to read if ``weight`` is 0."""

    weight: Literal[0, 1] | None = None


ExampleMessage = Annotated[MessageBody | WeightedAssistantMessage, Field(discriminator="role")]
Messages = Annotated[list[ExampleMessage], Field(min_length=1)]


class SupervisedExample(RequestModel):
    """A chat whose assistant messages the model learns."""

    messages: Messages

    @model_validator(mode="after")
    def _teaches_something(self) -> SupervisedExample:
        if self.messages[-1].role != "assistant":
            raise ValueError("the last message must be the assistant's")
        if not any(m.role == "assistant" and getattr(m, "weight", 1) != 0 for m in self.messages):
            raise ValueError("no assistant message has a weight other than 0")
        return self


class PreferenceInput(RequestModel):
    """The prompt of a preference."""

    messages: Messages


OneAnswer = Annotated[list[AssistantMessageBody], Field(min_length=1, max_length=1)]


class PreferenceExample(RequestModel):
    """A prompt, the preferred response and the rejected one."""

    input: PreferenceInput
    preferred_output: OneAnswer
    non_preferred_output: OneAnswer


_EXAMPLES: dict[Method, type[SupervisedExample] | type[PreferenceExample]] = {
    "supervised": SupervisedExample,
    "dpo": PreferenceExample,
}


@dataclass(frozen=True, slots=True)
class TrainingFileContent:
    """The method that a training file is for, and its number of examples."""

    method: Method
    examples: int


def check_training_file(lines: Iterable[bytes], *, examples_max: int) -> TrainingFileContent:
    """Check every line of a training file; the first line determines the format of all.

    Raises
    ------
    DataError
        If a line is invalid, with the line and the field, or if there are no or too many examples.
    """
    method: Method | None = None
    blank, count = 0, 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            blank = blank or number
            continue
        if blank:
            raise DataError(f"line {blank} is empty; expected a JSON object on every line.")
        if method is None:
            method = _method_of(line)
        _check_line(line, number, method)
        count += 1
        if count > examples_max:
            raise DataError(f"more than {examples_max} examples, the most that is taken.")
    if method is None:
        raise DataError("the file is empty; expected one JSON object per line.")
    return TrainingFileContent(method, count)


def _method_of(line: bytes) -> Method:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return "supervised"  # the line's own check refuses it
    is_preference = isinstance(content, dict) and "input" in content and "messages" not in content
    return "dpo" if is_preference else "supervised"


def _check_line(line: bytes, number: int, method: Method) -> None:
    try:
        _EXAMPLES[method].model_validate_json(line)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        if problem["type"] == "json_invalid":
            raise DataError(f"line {number} is not valid JSON: {problem['msg']}.") from error
        place = location_of(problem, sent=json.loads(line))
        where = f"line {number}, {place}" if place else f"line {number}"
        raise DataError(f"{where}: {problem['msg']} (a {method} example).") from error
