"""Answers that are compared with the right one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ratchet.scenarios.language_task.evaluators.base import EVALUATORS, Evaluator
from ratchet.scenarios.language_task.task import EXACT_MATCH, Evaluation, Task

if TYPE_CHECKING:
    from ratchet.language_models.types import ChatMessage


@EVALUATORS.register("exact")
class ExactMatch(Evaluator):
    """1 for the right answer, spaces around it aside; 0 for any other."""

    def score(
        self, task: Task, completion: str, messages: Sequence[ChatMessage]
    ) -> float | Evaluation:
        """Compare."""
        exact = float(_is_right(task, completion))
        return Evaluation(exact, metrics={EXACT_MATCH: exact})


@EVALUATORS.register("partial")
class PartialMatch(Evaluator):
    """The share of symbols that are right and in their places, of the longer of the two."""

    def score(
        self, task: Task, completion: str, messages: Sequence[ChatMessage]
    ) -> float | Evaluation:
        """Compare symbol by symbol."""
        said, right = completion.strip(), task.answer.strip()
        same = sum(one == other for one, other in zip(said, right, strict=False))
        longest = max(len(said), len(right))
        reward = same / longest if longest else 1.0
        return Evaluation(reward, metrics={EXACT_MATCH: float(_is_right(task, completion))})


def _is_right(task: Task, completion: str) -> bool:
    return completion.strip() == task.answer.strip()
