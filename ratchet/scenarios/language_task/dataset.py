"""A dataset of tasks: one JSON object a line."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from ratchet.errors import DataError
from ratchet.rollouts.dataset import StoredDataset
from ratchet.scenarios.language_task.task import Task


class TaskDataset(StoredDataset):
    """Tasks in a fixed order, each id once.

    Raises
    ------
    DataError
        If an id comes twice.
    """

    data_file = "tasks.jsonl"

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tuple(tasks)
        if len(ids := Counter(task.task_id for task in self._tasks)) < len(self._tasks):
            (task_id, count), *_ = ids.most_common(1)
            raise DataError(
                f"dataset: got {count} tasks of id {task_id!r}, expected each id once. A task that"
                " is read without a task_id has one made of its prompt: leave out prompts that come"
                " again, or give them ids."
            )

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> Task:
        return self._tasks[index]

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    @property
    def fields(self) -> list[str]:
        """What each task has."""
        return ["answer", "info", "prompt", "task_id"]

    def _lines(self) -> Iterator[str]:
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
        # not splitlines: other separators may stand in a text
        lines = file.read_text(encoding="utf-8").split("\n")
        tasks = [Task.from_dict(json.loads(line)) for line in lines if line]
        if len(tasks) != size:
            raise DataError(f"{file}: got {len(tasks)} tasks, expected {size}.")
        return cls(tasks)
