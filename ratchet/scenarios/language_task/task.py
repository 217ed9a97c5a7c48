"""Tasks, datasets of tasks, and prompt formats, which convert messages to tokens.

A prompt format is plain text or a chat template. Neither tokenizes generated text again: only the
text after it is appended.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
from pydantic import JsonValue

from ratchet.errors import DataError
from ratchet.language_models.types import ChatMessage
from ratchet.rollouts.dataset import StoredDataset

if TYPE_CHECKING:
    from ratchet.language_models.local.tokenizer import ChatTokenizer

Prompt = str | tuple[ChatMessage, ...]
"""Text to be continued or one user's message, or several messages."""

EXACT_MATCH = "exact_match"
"""The metric of evaluators for correct answers: 1 or 0."""
NUM_TURNS = "num_turns"

_TEST_METRICS = ("num_datapoints", "mean_response_length", "truncated_fraction")
_OF_AGENTS = ".mean_episode_reward"
_ROLLOUT_METRICS = (
    *("num_rollouts", "num_trajectories", "num_failures", "num_dropped", "reward", "turns"),
    *("truncated", "finish_stop", "finish_length", "finish_environment", "staleness"),
    *("model_version/min", "model_version/max"),
)


@dataclass(frozen=True)
class Task:
    """One task: its prompt, and the answer and information for evaluators.

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
        """The prompt as canonical JSON, which must not be in both train and test."""
        if isinstance(self.prompt, str):  # as below, in a fifth of the time
            return f'[{{"content": {json.dumps(self.prompt)}, "role": "user"}}]'
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
        """Create the task from plain data; the inverse of :meth:`to_dict`.

        Raises
        ------
        KeyError, TypeError
            If the data are no task's.
        """
        raw_prompt = data["messages"] if "messages" in data else data["prompt"]
        prompt = raw_prompt if isinstance(raw_prompt, str) else _read_messages(raw_prompt)
        answer, info = data["answer"], data.get("info") or {}
        if answer is None:
            raise TypeError(
                "answer is null, expected the correct answer, or an empty text without one"
            )
        if not isinstance(info, Mapping):
            raise TypeError(f"info is {type(info).__name__}, expected an object")
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return cls(data["task_id"], prompt, text, dict(info))


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of an answer.

    ``parts`` are the components of the reward, ``metrics`` further values; finite numbers.
    """

    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    def checked(self) -> Evaluation:
        """Return it with numbers that are floats, those of NumPy too.

        Raises
        ------
        ValueError
            Naming what is no finite number, or would replace another metric.
        """
        check_names(self.parts, self.metrics)
        return Evaluation(
            _float("reward", self.reward),
            {name: _float("parts", value, name) for name, value in self.parts.items()},
            {name: _float("metrics", value, name) for name, value in self.metrics.items()},
        )


def built_in_metric(name: str, *, is_part: bool = False) -> str | None:
    """Return Ratchet's metric that one of an evaluator or environment would replace, if any.

    ``is_part``: whether it is a part of the reward, which has a separate name in rollouts.
    """
    if name in _TEST_METRICS or name.endswith(_OF_AGENTS):
        return f"test_{name}"
    if is_part:
        return None
    is_score = name.startswith("score/")  # the names of the reward's parts
    return f"rollout/{name}" if is_score or name in (*_ROLLOUT_METRICS, NUM_TURNS) else None


def check_names(parts: Iterable[str], metrics: Iterable[str]) -> None:
    """Raise ValueError if a part or metric would replace another one, naming both."""
    names = {f"parts[{name!r}]": built_in_metric(name, is_part=True) for name in parts}
    names |= {f"metrics[{name!r}]": built_in_metric(name) for name in metrics}
    for name, built_in in names.items():
        if built_in is not None:
            raise ValueError(
                f"{name} would replace Ratchet's metric {built_in!r}. Choose another name"
            )
    both = set(parts) & set(metrics)
    if both:
        raise ValueError(
            f"{min(both)!r} names two values of parts and metrics, expected different names"
        )


def is_number(value: object) -> bool:
    """Return whether something is one real number, NumPy's among them."""
    return isinstance(value, Real | np.bool_)


def _float(what: str, value: float, part: str | None = None) -> float:
    if not is_number(value) or not math.isfinite(value):
        name = what if part is None else f"{what}[{part!r}]"
        raise ValueError(f"got {name} = {value!r}, expected finite numbers")
    return float(value)


def _read_messages(messages: object) -> tuple[ChatMessage, ...]:
    if not isinstance(messages, list | tuple):
        raise TypeError(f"messages are {type(messages).__name__}, expected a list")
    return tuple(ChatMessage.from_dict(message) for message in messages)


def check_ids(sides: Mapping[str, Sequence[Task]]) -> None:
    """Check that an id names one prompt on all sides: results are stored by it."""
    seen: dict[str, tuple[str, str]] = {}
    for side, tasks in sides.items():
        for task in tasks:
            other, prompt = seen.setdefault(task.task_id, (side, task.prompt_key))
            if prompt != task.prompt_key:
                raise DataError(
                    f"dataset: the id {task.task_id!r} names different prompts in {other} and"
                    f" {side}, expected a different id for each. Rename one."
                )


class _SavedTasks(Sequence[Task]):
    """The tasks of a dataset's file, each read from its line when it is used."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...

    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return _SavedTasks(self.lines[index])
        return Task.from_dict(json.loads(self.lines[index]))


class TaskDataset(StoredDataset):
    """Tasks in a fixed order, each id once.

    Raises
    ------
    DataError
        If an id comes twice.
    """

    data_file = "tasks.jsonl"

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks: Sequence[Task] = tuple(tasks)
        if len(ids := Counter(task.task_id for task in self._tasks)) < len(self._tasks):
            (task_id, count), *_ = ids.most_common(1)
            raise DataError(
                f"dataset: got {count} tasks of id {task_id!r}, expected each id once. A task"
                " without a task_id has one derived from its prompt: remove repeated prompts,"
                " or add ids."
            )

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> Task:
        return self._tasks[index]

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    @property
    def fields(self) -> list[str]:
        """The fields of each task."""
        return ["answer", "info", "prompt", "task_id"]

    def _lines(self) -> Iterator[str]:
        if isinstance(self._tasks, _SavedTasks):
            yield from (f"{line}\n" for line in self._tasks.lines)
            return
        for task in self._tasks:
            yield json.dumps(task.to_dict(), ensure_ascii=False, sort_keys=True) + "\n"

    def _hash_content(self) -> str:
        digest = hashlib.sha256()
        for line in self._lines():
            digest.update(line.encode())
        return digest.hexdigest()

    def _save_data(self, file: Path) -> None:
        with file.open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(self._lines())

    @classmethod
    def _load_data(cls, file: Path, size: int) -> Self:
        # not splitlines: texts may contain other separators
        lines = [line for line in file.read_text(encoding="utf-8").split("\n") if line]
        if len(lines) != size:
            raise DataError(f"{file}: got {len(lines)} tasks, expected {size}.")
        dataset = cls(())
        dataset._tasks = _SavedTasks(lines)
        return dataset


class PromptFormat(ABC):
    """Writes conversations for a model's tokenizer."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self.tokenizer = tokenizer

    @abstractmethod
    def prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the ids of a conversation up to where the model writes."""

    @abstractmethod
    def more(
        self, before: Sequence[ChatMessage], reply: str, new: Sequence[ChatMessage]
    ) -> list[int] | None:
        """Return the ids between a reply, with its end token, and the model's next reply.

        None if the earlier conversation is formatted differently now and must be encoded again.
        """

    def reply(self, text: str) -> list[int]:
        """Return the ids of a reply that the model did not generate, with its end token."""
        rendered_reply = self.tokenizer.spell_out(ChatMessage("assistant", text))
        return [*self.tokenizer.encode(rendered_reply), self.tokenizer.end_ids[0]]


class TextFormat(PromptFormat):
    """Messages concatenated without separators."""

    def prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the ids of the messages."""
        spelled = (self.tokenizer.spell_out(message) for message in messages)
        return [token for text in spelled for token in self.tokenizer.encode(text)]

    def more(
        self, before: Sequence[ChatMessage], reply: str, new: Sequence[ChatMessage]
    ) -> list[int] | None:
        """Return the ids of the new messages."""
        return self.prompt(new)


class ChatFormat(PromptFormat):
    """By the chat template of the model."""

    def prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the ids of the chat, with the start of the next message."""
        return self.tokenizer.prompt_ids(messages)

    def more(
        self, before: Sequence[ChatMessage], reply: str, new: Sequence[ChatMessage]
    ) -> list[int] | None:
        """Return the ids that the template adds after the reply's end token."""
        reply_message = ChatMessage("assistant", reply)
        written = self.tokenizer.render(before, answer=True) + self.tokenizer.spell_out(
            reply_message
        )
        now = self.tokenizer.render([*before, reply_message, *new], answer=True)
        if not now.startswith(written):
            return None  # the template shortens or moves earlier messages
        rest = now[len(written) :]
        ends = (self.tokenizer.token_text(end) for end in self.tokenizer.end_ids)
        end = next((end for end in ends if rest.startswith(end)), "")
        return self.tokenizer.encode(rest.removeprefix(end))


def prompt_format(tokenizer: ChatTokenizer, *, chat: bool) -> PromptFormat:
    """Return the format: by the chat template, or as plain text."""
    return ChatFormat(tokenizer) if chat else TextFormat(tokenizer)
