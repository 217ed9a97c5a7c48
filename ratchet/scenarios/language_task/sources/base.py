"""Sources of tasks: base classes, and tasks from files."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ratchet.errors import DataError
from ratchet.registry import Registry
from ratchet.scenarios.language_task.task import Task
from ratchet.seeding import derive_seed, numpy_generator

if TYPE_CHECKING:
    from ratchet.games.match import Game
    from ratchet.language_models.types import ChatMessage
    from ratchet.scenarios.language_task.environments.base import LanguageEnvironment
    from ratchet.scenarios.language_task.parameters import LanguageTaskParameters

SIDES = ("train", "test")
DEFAULT_SIZES = {"train": 2000, "test": 200}
"""Numbers of drawn tasks, if the experiment does not set them."""
_MOST_MISSES = 2000
"""Consecutive samples without a new task, after which tasks count as exhausted."""

SOURCES: Registry[TaskSource] = Registry(
    "language_task",
    "ratchet.scenarios.language_task.sources.base:TaskSource",
    "ratchet.scenarios.language_task.sources",
    parameter="dataset",
)


@dataclass(frozen=True)
class Sizes:
    """Requested number of tasks of each side (None: not set), and the split into sides."""

    train: int | None = None
    test: int | None = None
    test_size: float = 0.2

    def of(self, side: str) -> int | None:
        """Return the requested number of tasks of a side."""
        known = {"train": self.train, "validation": None}
        return known.get(side, self.test)


class TaskSource(ABC):
    """Source of tasks. A custom one is set as ``dataset: path/to/file.py:Class``.

    ``section`` is the experiment's section of tasks.
    """

    instruction: ClassVar[str] = ""
    """The default system prompt of chat models."""

    def __init__(self, section: LanguageTaskParameters) -> None:
        self.section = section

    @abstractmethod
    def build(self, seed: int, sizes: Sizes) -> Mapping[str, Sequence[Task]]:
        """Return the tasks of ``train`` and ``test``, and of ``validation`` if any.

        Raises
        ------
        DataError
            If they can't be generated or read.
        """

    def characters(self) -> str:
        """Return the characters of prompts and answers; if empty, those of the tasks are used."""
        return ""

    def demonstrate(self, task: Task) -> str:
        """Return how a task is done well, to be learned from before rewards; its answer."""
        return task.answer

    def demonstrations(self, task: Task) -> Iterator[tuple[Sequence[ChatMessage], str]]:
        """Yield each conversation of a task, up to a reply, with a good reply."""
        yield task.messages, self.demonstrate(task)

    def environment(self) -> LanguageEnvironment | Game | None:
        """Return the environment or game of these tasks; None: a single turn."""
        return None


class DrawnTasks(TaskSource):
    """Tasks that are sampled one by one. Subclasses write :meth:`draw`."""

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> Task:
        """Sample a task; tasks may repeat."""

    def build(self, seed: int, sizes: Sizes) -> dict[str, list[Task]]:
        """Sample until each side has enough tasks, no prompt twice.

        A prompt's hash determines its side, so larger sets start with the tasks of smaller ones.
        """
        salt = derive_seed(seed, "language_task", purpose="sides")
        return {side: self._draw_side(side, seed, sizes, salt) for side in SIDES}

    def _draw_side(self, side: str, seed: int, sizes: Sizes, salt: int) -> list[Task]:
        num_tasks = sizes.of(side) or DEFAULT_SIZES[side]
        rng = numpy_generator(seed, "language_task", purpose=f"{type(self).__name__}/{side}")
        tasks: dict[str, Task] = {}
        misses = 0
        while len(tasks) < num_tasks and misses < _MOST_MISSES:
            task = self.draw(rng)
            key = task.prompt_key
            is_new = key not in tasks and (share(key, salt) < sizes.test_size) == (side == "test")
            misses = 0 if is_new else misses + 1
            if is_new:
                tasks[key] = task
        if len(tasks) < num_tasks:
            raise DataError(
                f"language_task: only {len(tasks)} different {side} tasks of"
                f" {type(self).__name__}, expected {num_tasks}. Choose longer tasks, set"
                f" language_task.num_{side} to at most {len(tasks)}, or choose another test_size."
            )
        return list(tasks.values())


def share(key: str, salt: int) -> float:
    """Place a prompt in [0, 1), evenly and the same in every process."""
    digest = hashlib.sha256(f"{salt}\x1f{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


class TaskFiles(TaskSource):
    """Tasks of a file ``NAME.jsonl``, or of a folder with ``train.jsonl`` and ``test.jsonl``.

    A line has ``prompt`` (a text, or a list of messages, which may be called ``messages`` too) and
    ``answer``; ``task_id`` if tasks have names (otherwise derived from the prompt), and ``info``
    for evaluators.
    """

    def __init__(self, section: LanguageTaskParameters, path: Path) -> None:
        super().__init__(section)
        self.path = path

    def build(self, seed: int, sizes: Sizes) -> dict[str, list[Task]]:
        """Read the tasks; one file is shuffled and divided by the prompts' hashes."""
        if self.path.is_dir():
            return read_sides(self.path, sizes)
        return divide(read_tasks(self.path), seed, sizes, str(self.path))


def read_sides(folder: Path, sizes: Sizes) -> dict[str, list[Task]]:
    """Read ``train.jsonl``, ``test.jsonl`` and further test sets, the files' first tasks each."""
    sides = {file.stem: read_tasks(file) for file in sorted(folder.glob("*.jsonl"))}
    missing = [side for side in SIDES if not sides.get(side)]
    if missing:
        raise DataError(
            f"{folder}: got no tasks for {missing}, expected the files train.jsonl and test.jsonl."
        )
    train = {task.prompt_key for task in sides["train"]}
    for side, tasks in sides.items():
        both = [task.task_id for task in tasks if side != "train" and task.prompt_key in train]
        if both:
            raise DataError(
                f"{folder}: {len(both)} prompts of {side}.jsonl are in train.jsonl too, e.g. that"
                f" of {both[0]!r}. Leave them out of one."
            )
    return {side: tasks[: sizes.of(side)] for side, tasks in sides.items()}


def divide(tasks: Iterable[Task], seed: int, sizes: Sizes, name: str) -> dict[str, list[Task]]:
    """Shuffle tasks and put each on the side that its prompt's hash says.

    Raises DataError if a side has no task.
    """
    salt = derive_seed(seed, "language_task", purpose="sides")
    all_tasks = list(tasks)
    order = numpy_generator(seed, "language_task", purpose="order").permutation(len(all_tasks))
    sides: dict[str, list[Task]] = {side: [] for side in SIDES}
    for index in order.tolist():
        task = all_tasks[index]
        is_test = share(task.prompt_key, salt) < sizes.test_size
        sides["test" if is_test else "train"].append(task)
    empty = [side for side, side_tasks in sides.items() if not side_tasks]
    if empty:
        raise DataError(
            f"{name}: of {len(all_tasks)} tasks none is left for {empty}. Give more tasks, another"
            " test_size, or a folder with train.jsonl and test.jsonl."
        )
    return {side: side_tasks[: sizes.of(side)] for side, side_tasks in sides.items()}


def read_tasks(file: Path) -> list[Task]:
    """Read the tasks of a file.

    Raises DataError with the line that is not a task.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # a byte order mark is ignored
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read: {error}. Expected a file of tasks.") from error
    tasks = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                tasks.append(task_of_row(json.loads(line)))
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(
                    f"{file}, line {number}: no task: {type(error).__name__}: {error}. Expected an"
                    " object with prompt (or messages) and answer."
                ) from error
    return tasks


def task_of_row(row: object) -> Task:
    """Convert a row to a task; a missing id is derived from the prompt."""
    if not isinstance(row, Mapping):
        raise TypeError(f"got {type(row).__name__}, expected an object")
    prompt = row.get("messages") or row["prompt"]
    digest = hashlib.sha256(json.dumps(prompt, sort_keys=True).encode()).hexdigest()[:12]
    named = row.get("task_id")
    return Task.from_dict({**row, "task_id": digest if named is None else str(named)})
