"""Score an episode by the reward functions of a rubric."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ratchet.errors import ParameterError
from ratchet.scenarios.language_task.task import Evaluation
from ratchet.scenarios.language_task.verifiers_kind.loading import call_named

_OF_GROUPS = frozenset({"states", "prompts", "completions", "answers", "tasks", "infos"})


class Rubric:
    """The weighted reward functions of an environment's rubric, or of its group of rubrics.

    Functions of weight 0 are metrics. An error in one travels.

    Raises
    ------
    ParameterError
        If there are none, or one scores whole groups.
    """

    def __init__(self, environment: Any) -> None:  # noqa: ANN401 -- of a package that isn't known
        rubric = getattr(environment, "rubric", None)
        self._scored = list(_functions(rubric))
        if not self._scored:
            raise ParameterError(
                f"dataset: the environment {type(environment).__name__} has no reward functions,"
                " expected a rubric with funcs and weights."
            )
        for function, _, _ in self._scored:
            taken = _OF_GROUPS.intersection(inspect.signature(function).parameters)
            if taken:
                raise ParameterError(
                    f"dataset: the reward function {_name(function)} takes {sorted(taken)}: it"
                    " scores whole groups, which is not supported. Expected one that scores an"
                    " answer alone."
                )
        parser = getattr(environment, "parser", None) or getattr(rubric, "parser", None)
        self._parser = {} if parser is None else {"parser": parser}

    def score(self, state: Mapping[str, Any]) -> Evaluation:
        """Return the weighted sum and what it is made of."""
        names = ("prompt", "completion", "answer", "info", "task")
        given = {**self._parser, **{name: state[name] for name in names}, "state": state}
        reward, parts, metrics = 0.0, dict[str, float](), dict[str, float]()
        for function, weight, objects in self._scored:
            score = float(call_named(function, {**given, **objects}))
            reward += weight * score
            (parts if weight else metrics)[_name(function)] = score
        return Evaluation(reward, parts, metrics)


_Scored = tuple[Callable[..., Any], float, Mapping[str, Any]]
"""A function, its weight, and what its rubric hands to it besides."""


def _functions(rubric: object) -> Iterator[_Scored]:
    """Go through functions and weights, however this version calls them."""
    for inner in getattr(rubric, "rubrics", ()):
        yield from _functions(inner)
    functions = getattr(rubric, "funcs", None) or getattr(rubric, "reward_funcs", None) or ()
    weights = getattr(rubric, "weights", None) or getattr(rubric, "reward_weights", None)
    objects = getattr(rubric, "class_objects", None) or {}
    for function, weight in zip(functions, weights or [1.0] * len(functions), strict=True):
        yield function, float(weight), objects


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
