"""Tasks that are read from files: one JSON object a line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import DataError
from ratchet.scenarios.language_task.sources.base import SIDES, Sizes, TaskSource, share
from ratchet.scenarios.language_task.task import Task
from ratchet.seeding import derive_seed, numpy_generator

if TYPE_CHECKING:
    from ratchet.scenarios.language_task.parameters import LanguageTaskParameters


class TaskFiles(TaskSource):
    """Tasks of a file ``NAME.jsonl``, or of a folder with ``train.jsonl`` and ``test.jsonl``.

    A line has ``prompt`` (a text, or a list of messages, which may be called ``messages`` too) and
    ``answer``; ``task_id`` if tasks have names (else it is made of the prompt), and ``info`` for
    evaluators.
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

    Raises
    ------
    DataError
        If a side has none.
    """
    salt = derive_seed(seed, "language_task", purpose="sides")
    all_tasks = list(tasks)
    order = numpy_generator(seed, "language_task", purpose="order").permutation(len(all_tasks))
    sides: dict[str, list[Task]] = {side: [] for side in SIDES}
    for place in order.tolist():
        task = all_tasks[place]
        is_test = share(task.prompt_key, salt) < sizes.test_size
        sides["test" if is_test else "train"].append(task)
    empty = [side for side, found in sides.items() if not found]
    if empty:
        raise DataError(
            f"{name}: of {len(all_tasks)} tasks none is left for {empty}. Give more tasks, another"
            " test_size, or a folder with train.jsonl and test.jsonl."
        )
    return {side: found[: sizes.of(side)] for side, found in sides.items()}


def read_tasks(file: Path) -> list[Task]:
    """Read the tasks of a file.

    Raises
    ------
    DataError
        With the line that is no task.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
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
    """Make a task of a row; its id is made of the prompt where it has none."""
    if not isinstance(row, Mapping):
        raise TypeError(f"got {type(row).__name__}, expected an object")
    prompt = row.get("messages") or row["prompt"]
    digest = hashlib.sha256(json.dumps(prompt, sort_keys=True).encode()).hexdigest()[:12]
    named = row.get("task_id")
    return Task.from_dict({**row, "task_id": digest if named is None else str(named)})
