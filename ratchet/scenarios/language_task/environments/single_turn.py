"""One question, one reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.scenarios.language_task.environments.base import (
    ENVIRONMENTS,
    Episode,
    LanguageEnvironment,
    PlainEpisode,
)

if TYPE_CHECKING:
    from ratchet.scenarios.language_task.task import Task


@ENVIRONMENTS.register("single_turn")
class SingleTurn(LanguageEnvironment):
    """The model replies once."""

    max_turns = 1

    def begin(self, task: Task, seed: int) -> Episode:
        """Begin with the task's messages."""
        return PlainEpisode(task)
