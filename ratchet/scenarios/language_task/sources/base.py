"""``TaskSource``: where tasks come from, and what is known of them beforehand."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ratchet.errors import DataError
from ratchet.registry import Registry
from ratchet.seeding import derive_seed, numpy_generator

if TYPE_CHECKING:
    from ratchet.scenarios.language_task.environments.base import LanguageEnvironment
    from ratchet.scenarios.language_task.parameters import LanguageTaskParameters
    from ratchet.scenarios.language_task.task import Task

SIDES = ("train", "test")
_DRAWN = {"train": 2000, "test": 200}
_MOST_MISSES = 2000
"""Draws in a row that give nothing new, after which there is nothing new."""


@dataclass(frozen=True)
class Sizes:
    """How many tasks are wanted of each side (None: not said), and how they are told apart."""

    train: int | None = None
    test: int | None = None
    test_size: float = 0.2

    def of(self, side: str) -> int | None:
        """Return how many a side should have."""
        known = {"train": self.train, "validation": None}
        return known.get(side, self.test)


class TaskSource(ABC):
    """Where tasks come from. One's own is given as ``dataset: path/to/file.py:Class``.

    ``section`` is what the experiment says of its tasks.
    """

    instruction: ClassVar[str] = ""
    """What a chat model is told first where the experiment says nothing else."""

    def __init__(self, section: LanguageTaskParameters) -> None:
        self.section = section

    @abstractmethod
    def build(self, seed: int, sizes: Sizes) -> Mapping[str, Sequence[Task]]:
        """Make the tasks of ``train`` and ``test``, and of ``validation`` if there are any.

        Raises
        ------
        DataError
            If they can't be made or read.
        """

    def characters(self) -> str:
        """Return what prompts and answers may be written with; of the tasks found, if empty."""
        return ""

    def demonstrate(self, task: Task) -> str:
        """Return how a task is done well, to be learned from before rewards; its answer."""
        return task.answer

    def environment(self) -> LanguageEnvironment | None:
        """Return what is around these tasks; None: a single turn."""
        return None


class DrawnTasks(TaskSource):
    """Tasks that are drawn one by one. Subclasses write :meth:`draw`."""

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> Task:
        """Draw a task; the same one may come again."""

    def build(self, seed: int, sizes: Sizes) -> dict[str, list[Task]]:
        """Draw until there are enough of each side, no prompt twice.

        A prompt's hash decides its side, so that larger sets begin with the smaller ones' tasks.
        """
        salt = derive_seed(seed, "language_task", purpose="sides")
        return {side: self._draw_side(side, seed, sizes, salt) for side in SIDES}

    def _draw_side(self, side: str, seed: int, sizes: Sizes, salt: int) -> list[Task]:
        wanted = sizes.of(side) or _DRAWN[side]
        rng = numpy_generator(seed, "language_task", purpose=f"{type(self).__name__}/{side}")
        found: dict[str, Task] = {}
        misses = 0
        while len(found) < wanted and misses < _MOST_MISSES:
            task = self.draw(rng)
            key = task.prompt_key
            is_new = key not in found and (share(key, salt) < sizes.test_size) == (side == "test")
            misses = 0 if is_new else misses + 1
            if is_new:
                found[key] = task
        if len(found) < wanted:
            raise DataError(
                f"language_task: there are no more than {len(found)} different {side} tasks of"
                f" {type(self).__name__}, expected {wanted}. Ask for longer ones, set"
                f" language_task.num_{side} to at most {len(found)}, or choose another test_size."
            )
        return list(found.values())


def share(key: str, salt: int) -> float:
    """Place a prompt in [0, 1), evenly and the same in every process."""
    digest = hashlib.sha256(f"{salt}\x1f{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


SOURCES: Registry[TaskSource] = Registry(
    "language_task",
    "ratchet.scenarios.language_task.sources.base:TaskSource",
    "ratchet.scenarios.language_task.sources",
    parameter="dataset",
)
