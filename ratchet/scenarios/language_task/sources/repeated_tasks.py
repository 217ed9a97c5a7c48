"""Check of files of tasks before a run: repeated ones are named by line and text.

Not a method of the scenario, whose code counts in the keys of stages.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from ratchet.errors import DataError
from ratchet.plugins import file_at, is_class_spec
from ratchet.scenarios.language_task.sources.base import SOURCES, read_tasks

_SHOWN = 3
_MAX_LENGTH = 60


def check_repeated_tasks(dataset: str, base_dir: Path | None) -> None:
    """Check that no task occurs twice in a dataset's file, or in a file of its folder."""
    if is_class_spec(dataset) or dataset in SOURCES.names():
        return
    path = file_at(dataset, base_dir)
    if not path.is_dir() and not (path.suffix == ".jsonl" and path.is_file()):
        return
    for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
        tasks = read_tasks(file)
        counts = Counter(task.task_id for task in tasks)
        repeated = [task_id for task_id, count in counts.items() if count > 1]
        if repeated:
            text = file.read_text(encoding="utf-8-sig")
            numbers = [n for n, line in enumerate(text.split("\n"), 1) if line.strip()]
            lines: dict[str, list[int]] = defaultdict(list)
            prompts: dict[str, str] = {}
            for number, task in zip(numbers, tasks, strict=True):
                lines[task.task_id].append(number)
                prompts[task.task_id] = task.messages[-1].content
            repetitions = [
                f"lines {', '.join(map(str, lines[task_id]))}: {_shortened(prompts[task_id])!r}"
                for task_id in repeated[:_SHOWN]
            ]
            more = ["…"] if len(repeated) > _SHOWN else []
            raise DataError(
                f"{file}: got repeated tasks ({'; '.join([*repetitions, *more])}), expected each"
                " once. Remove repeated lines, or give them different values of task_id."
            )


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"
