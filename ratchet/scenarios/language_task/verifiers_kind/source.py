"""The tasks of an environment of the ``verifiers`` kind."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ratchet.errors import DataError
from ratchet.scenarios.language_task.environments.base import LanguageEnvironment
from ratchet.scenarios.language_task.sources.base import Sizes, TaskSource
from ratchet.scenarios.language_task.sources.files import divide, task_of_row
from ratchet.scenarios.language_task.task import Task
from ratchet.scenarios.language_task.verifiers_kind.environment import VerifiersEnvironment

if TYPE_CHECKING:
    from ratchet.scenarios.language_task.parameters import LanguageTaskParameters


class VerifiersTasks(TaskSource):
    """The rows of an environment's ``dataset``, and of its ``eval_dataset`` if it has one.

    A row's ``prompt`` is taken as it is; of ``question`` one is made, with the environment's
    ``system_prompt`` and ``few_shot``.
    """

    def __init__(self, section: LanguageTaskParameters, load: Callable[..., Any]) -> None:
        super().__init__(section)
        self._found = load(**section.task_options)
        self._environment = VerifiersEnvironment(self._found)

    def environment(self) -> LanguageEnvironment:
        """Return its own turns and rubric."""
        return self._environment

    def build(self, seed: int, sizes: Sizes) -> dict[str, list[Task]]:
        """Read the rows; where there is no ``eval_dataset``, prompts' hashes divide them."""
        name = type(self._found).__name__
        rows = self._rows("dataset")
        tests = self._rows("eval_dataset")
        if rows is None:
            raise DataError(f"dataset: {name} has no dataset to learn from, expected one.")
        if tests is None:
            return divide(self._tasks(rows, name), seed, sizes, name)
        train, test = self._tasks(rows, name), self._tasks(tests, name)
        tested = {task.prompt_key for task in test}
        both = sum(task.prompt_key in tested for task in train)
        if both:
            raise DataError(
                f"dataset: {both} prompts of {name} are in its dataset and its eval_dataset,"
                " expected none in both."
            )
        return {"train": train[: sizes.train], "test": test[: sizes.test]}

    def _rows(self, which: str) -> Iterable[Mapping[str, Any]] | None:
        rows: Iterable[Mapping[str, Any]] | None = getattr(self._found, which, None)
        if rows is None and which == "dataset" and hasattr(self._found, "get_dataset"):
            rows = self._found.get_dataset()
        return rows

    def _tasks(self, rows: Iterable[Mapping[str, Any]], name: str) -> list[Task]:
        try:
            tasks = [self._task(dict(row)) for row in rows]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"dataset: a row of {name} is no task: {type(error).__name__}: {error}. Expected"
                " prompt (or question) and answer or info."
            ) from error
        seen: Counter[str] = Counter()
        named = []
        for task in tasks:  # the same prompt may come with another answer
            count, seen[task.task_id] = seen[task.task_id], seen[task.task_id] + 1
            more = f"-{count}" if count else ""
            named.append(Task(task.task_id + more, task.prompt, task.answer, task.info))
        return named

    def _task(self, row: dict[str, Any]) -> Task:
        prompt = row.get("prompt") or self._messages(row["question"])
        info = row.get("info") or {}
        kept = {
            "info": json.loads(info) if isinstance(info, str) else dict(info),
            "task": row.get("task") or "default",
            "example_id": row.get("example_id", row.get("id")),
        }
        data = {"prompt": prompt, "answer": row.get("answer") or "", "info": kept}
        return task_of_row(data)

    def _messages(self, question: str) -> list[dict[str, Any]]:
        system = getattr(self._found, "system_prompt", None)
        few_shot = getattr(self._found, "few_shot", None) or ()
        first = [{"role": "system", "content": system}] if system else []
        return [*first, *map(dict, few_shot), {"role": "user", "content": question}]
