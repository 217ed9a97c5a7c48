"""What a language model is asked, and what its answer was worth. Plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from pydantic import JsonValue

from ratchet.errors import DataError
from ratchet.language_models.types import ChatMessage

Prompt = str | tuple[ChatMessage, ...]
"""Text to be continued or one user's message, or several messages."""

EXACT_MATCH = "exact_match"
NUM_TURNS = "num_turns"
"""The metric by which evaluators say whether an answer is right: 1 or 0."""


@dataclass(frozen=True)
class Task:
    """One task: what is asked, and what an evaluator knows about the answer.

    Raises
    ------
    DataError
        If it has no id or no prompt.
    """

    task_id: str
    prompt: Prompt
    answer: str = ""
    info: Mapping[str, JsonValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.task_id, str) or not self.task_id or not self.prompt:
            raise DataError(
                f"task {self.task_id!r}: got the prompt {self.prompt!r}, expected an id and a"
                " prompt, neither of them empty."
            )

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """The prompt as messages."""
        if isinstance(self.prompt, str):
            return (ChatMessage("user", self.prompt),)
        return tuple(self.prompt)

    @property
    def prompt_key(self) -> str:
        """The prompt as canonical JSON: what must not be on both sides."""
        return json.dumps([message.to_dict() for message in self.messages], sort_keys=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the task as plain data; a prompt of messages as ``messages``."""
        prompt: dict[str, Any] = (
            {"prompt": self.prompt}
            if isinstance(self.prompt, str)
            else {"messages": [message.to_dict() for message in self.prompt]}
        )
        return {"task_id": self.task_id, **prompt, "answer": self.answer, "info": dict(self.info)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Task:
        """Make the task of plain data; the inverse of :meth:`to_dict`.

        Raises
        ------
        KeyError, TypeError
            If the data are no task's.
        """
        said = data["messages"] if "messages" in data else data["prompt"]
        prompt = said if isinstance(said, str) else _read_messages(said)
        answer, info = data["answer"], data.get("info") or {}
        if answer is None:
            raise TypeError(
                "answer is null, expected what is right, or an empty text where nothing is"
            )
        if not isinstance(info, Mapping):
            raise TypeError(f"info is {type(info).__name__}, expected an object")
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return cls(data["task_id"], prompt, text, dict(info))


@dataclass(frozen=True)
class Evaluation:
    """What an evaluator says of an answer.

    ``parts`` are what the reward is made of, ``metrics`` what is worth knowing besides; numbers
    only, finite.
    """

    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    def checked(self) -> Evaluation:
        """Return it with numbers that are floats, those of NumPy too.

        Raises
        ------
        ValueError
            Naming what is no finite number.
        """
        return Evaluation(
            _float("reward", self.reward),
            {name: _float("parts", value, name) for name, value in self.parts.items()},
            {name: _float("metrics", value, name) for name, value in self.metrics.items()},
        )


def is_number(value: object) -> bool:
    """Return whether something is one real number, NumPy's among them."""
    return isinstance(value, Real | np.bool_)


def _float(what: str, value: float, part: str | None = None) -> float:
    if not is_number(value) or not math.isfinite(value):
        about = what if part is None else f"{what}[{part!r}]"
        raise ValueError(f"got {about} = {value!r}, expected finite numbers")
    return float(value)


def _read_messages(messages: object) -> tuple[ChatMessage, ...]:
    if not isinstance(messages, list | tuple):
        raise TypeError(f"messages are {type(messages).__name__}, expected a list")
    return tuple(ChatMessage.from_dict(message) for message in messages)
