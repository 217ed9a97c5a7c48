"""Evaluators of answers by name: base class, custom functions, and string matching."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import DataError, ParameterError
from ratchet.plugins import is_class_spec, load_callable, readable_name
from ratchet.registry import Registry
from ratchet.scenarios.language_task.task import EXACT_MATCH, Evaluation, Task, is_number

if TYPE_CHECKING:
    from ratchet.language_models.types import ChatMessage
    from ratchet.parameters.base import Reference

BUILT_IN = dict.fromkeys(("exact", "partial"), "ratchet.scenarios.language_task.evaluators")
"""Name → the module that registers it."""
EVALUATORS: Registry[Evaluator] = Registry(
    "evaluator",
    "ratchet.scenarios.language_task.evaluators:Evaluator",
    "ratchet.scenarios.language_task.evaluators",
    parameter="language_task.evaluator",
)


class Evaluator(ABC):
    """Evaluator of answers. Parameters are those next to the name in the experiment."""

    @property
    def name(self) -> str:
        """The name in messages."""
        return readable_name(type(self))

    @abstractmethod
    def score(
        self, task: Task, completion: str, messages: Sequence[ChatMessage]
    ) -> float | Evaluation:
        """Score the last reply of a conversation, which may have been cut off."""

    def evaluate(self, task: Task, completion: str, messages: Sequence[ChatMessage]) -> Evaluation:
        """Score and check the numbers."""
        return checked(self.score(task, completion, messages), self.name, task)


class FunctionEvaluator(Evaluator):
    """A user's function as an evaluator; ``given`` are its further arguments."""

    def __init__(
        self, function: Callable[..., Any], arguments: dict[str, Any] | None = None
    ) -> None:
        self.function = function
        self._given = arguments or {}

    @property
    def name(self) -> str:
        """The function's name, with its file."""
        return readable_name(self.function)

    def score(
        self, task: Task, completion: str, messages: Sequence[ChatMessage]
    ) -> float | Evaluation:
        """Call the function."""
        scored: float | Evaluation = self.function(task, completion, messages, **self._given)
        return scored


def checked(scored: object, evaluator: str, task: Task) -> Evaluation:
    """Return a score as an evaluation of finite numbers."""
    evaluation = Evaluation(scored) if is_number(scored) else scored  # type: ignore[arg-type]
    prefix = f"evaluator {evaluator}, task {task.task_id!r}"
    if not isinstance(evaluation, Evaluation):
        raise DataError(
            f"{prefix}: got {type(scored).__name__}, expected a number or an Evaluation."
        )
    try:
        return evaluation.checked()
    except ValueError as error:
        raise DataError(f"{prefix}: {error}.") from error


def load_evaluator(reference: Reference, base_dir: Path | None) -> Callable[..., object]:
    """Return the class or function that an experiment names as its evaluator."""
    if not is_class_spec(reference.name):
        return EVALUATORS.find(reference.name)
    return load_callable(reference.name, base_dir, "language_task.evaluator")


def build_evaluator(reference: Reference, base_dir: Path | None = None) -> Evaluator:
    """Build the evaluator that an experiment names.

    Instances of a class that is not an :class:`Evaluator` must be callable like a function.
    """
    factory = load_evaluator(reference, base_dir)
    if not isinstance(factory, type):
        return FunctionEvaluator(factory, dict(reference.given))
    try:
        evaluator = factory(**reference.given)
    except TypeError as error:
        raise ParameterError(
            f"language_task.evaluator: {reference.name} does not accept"
            f" {dict(reference.given)}: {error}."
        ) from error
    if isinstance(evaluator, Evaluator):
        return evaluator
    if not callable(evaluator):
        raise ParameterError(
            f"language_task.evaluator: {reference.name} creates {type(evaluator).__name__},"
            " expected an Evaluator, or something to be called with task, completion and messages."
        )
    return FunctionEvaluator(evaluator)


@EVALUATORS.register("exact")
class ExactMatch(Evaluator):
    """1 for the correct answer, ignoring surrounding spaces; 0 for any other."""

    def score(
        self, task: Task, completion: str, messages: Sequence[ChatMessage]
    ) -> float | Evaluation:
        """Compare."""
        exact = float(_is_right(task, completion))
        return Evaluation(exact, metrics={EXACT_MATCH: exact})


@EVALUATORS.register("partial")
class PartialMatch(Evaluator):
    """The share of symbols that are correct and in position, of the longer of the two."""

    def score(
        self, task: Task, completion: str, messages: Sequence[ChatMessage]
    ) -> float | Evaluation:
        """Compare symbol by symbol."""
        predicted, right = completion.strip(), task.answer.strip()
        same = sum(one == other for one, other in zip(predicted, right, strict=False))
        longest = max(len(predicted), len(right))
        reward = same / longest if longest else 1.0
        return Evaluation(reward, metrics={EXACT_MATCH: float(_is_right(task, completion))})


def _is_right(task: Task, completion: str) -> bool:
    return completion.strip() == task.answer.strip()
