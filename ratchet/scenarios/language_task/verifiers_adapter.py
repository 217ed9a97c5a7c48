"""Adapter of environments in the style of the ``verifiers`` package: tasks, turns and rubrics.

Environments are recognised by their attributes, not by their class, so that the package itself
need not be installed.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ratchet.errors import DataError, ParameterError
from ratchet.language_models.types import ChatMessage
from ratchet.plugins import file_at, load_module
from ratchet.scenarios.language_task.environments.base import Episode, LanguageEnvironment, Turn
from ratchet.scenarios.language_task.sources.base import Sizes, TaskSource, divide, task_of_row
from ratchet.scenarios.language_task.task import Evaluation, Task, built_in_metric
from ratchet.shadowing import explain_failed_import

if TYPE_CHECKING:
    from ratchet.scenarios.language_task.parameters import LanguageTaskParameters

PREFIX = "verifiers:"
_ENTRANCE = "load_environment"

_OF_GROUPS = frozenset({"states", "prompts", "completions", "answers", "tasks", "infos"})
_Scored = tuple[Callable[..., Any], float, Mapping[str, Any]]
"""A function, its weight, and further arguments from its rubric."""
_TIMES = ("start_time", "generation_ms", "scoring_ms", "total_ms")
"""Timing record that such environments write; not read here."""


def find_loader(dataset: str, base_dir: Path | None) -> Callable[..., Any]:
    """Return the function that creates the environment of ``verifiers:NAME``.

    The name is a package's (``owner/some-game`` and ``some-game`` are ``some_game``), that of a
    Python file, or of a folder with the package's file, relative to ``base_dir``.
    """
    name = dataset.removeprefix(PREFIX)
    module = _find_module(name, base_dir)
    loader = getattr(module, _ENTRANCE, None)
    if not callable(loader):
        raise ParameterError(
            f"dataset: {dataset!r} has no function {_ENTRANCE}, expected a package or file for"
            " verifiers 0.1 or 0.2; the interface of later versions is not read."
        )
    return loader  # type: ignore[no-any-return]


def _find_module(name: str, base_dir: Path | None) -> ModuleType:
    path = file_at(name, base_dir)
    if name.endswith(".py"):
        return load_module(path)
    module_file = path / f"{path.name.replace('-', '_')}.py"
    if module_file.is_file():
        return load_module(module_file)
    package = name.rpartition("/")[2].replace("-", "_")
    try:
        return importlib.import_module(package)
    except ImportError as error:
        clash = explain_failed_import(error, Path.cwd())
        raise ParameterError(
            f"dataset: got {PREFIX}{name}, but importing {package!r} failed: {error}."
            f" {clash or f'Install the package, or give a file: {PREFIX}path/to/file.py.'}"
        ) from error


def settled(value: Any) -> Any:  # noqa: ANN401 -- the function's result, of any type
    """Return a value, awaited where it is to be."""
    if not inspect.isawaitable(value):
        return value

    async def wait() -> Any:  # noqa: ANN401
        return await value

    return asyncio.run(wait())


def call_named(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Call a function with those of the given arguments that it takes, and wait for it."""
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    accepted = {name: arguments[name] for name in arguments if takes_all or name in parameters}
    return settled(function(**accepted))


class Rubric:
    """The weighted reward functions of an environment's rubric, or of its group of rubrics.

    Functions of weight 0 are metrics. Their errors are raised.
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
            group_parameters = _OF_GROUPS.intersection(inspect.signature(function).parameters)
            if group_parameters:
                raise ParameterError(
                    f"dataset: the reward function {_name(function)} takes"
                    f" {sorted(group_parameters)}: it scores whole groups, which is not supported."
                    " Expected one that scores an answer alone."
                )
        parser = getattr(environment, "parser", None) or getattr(rubric, "parser", None)
        self._parser = {} if parser is None else {"parser": parser}

    def score(self, state: Mapping[str, Any]) -> Evaluation:
        """Return the weighted sum and its components.

        Names of Ratchet's metrics have the prefix ``rubric.``.
        """
        names = ("prompt", "completion", "answer", "info", "task")
        arguments = {**self._parser, **{name: state[name] for name in names}, "state": state}
        reward, parts, metrics = 0.0, dict[str, float](), dict[str, float]()
        for function, weight, objects in self._scored:
            score = float(call_named(function, {**arguments, **objects}))
            reward += weight * score
            name = _name(function)
            if built_in_metric(name, is_part=bool(weight)) is not None:
                name = f"rubric.{name}"
            (parts if weight else metrics)[name] = score
        return Evaluation(reward, parts, metrics)


def _functions(rubric: object) -> Iterator[_Scored]:
    """Iterate over functions and weights, in the naming of either version."""
    for inner in getattr(rubric, "rubrics", ()):
        yield from _functions(inner)
    functions = getattr(rubric, "funcs", None) or getattr(rubric, "reward_funcs", None) or ()
    weights = getattr(rubric, "weights", None) or getattr(rubric, "reward_weights", None)
    objects = getattr(rubric, "class_objects", None) or {}
    for function, weight in zip(functions, weights or [1.0] * len(functions), strict=True):
        yield function, float(weight), objects


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


class VerifiersEnvironment(LanguageEnvironment):
    """An environment's ``setup_state``, ``env_response``, ``is_completed`` and ``rubric``.

    Its own ``max_turns`` holds where it has one above 0; one without ``env_response`` is of a
    single turn.
    """

    scores_itself = True

    def __init__(self, environment: Any) -> None:  # noqa: ANN401 -- of a package that isn't known
        self.wrapped = environment
        self.rubric = Rubric(environment)
        max_turns = getattr(environment, "max_turns", None)
        talks = callable(getattr(environment, "env_response", None))
        self.max_turns = (max_turns if max_turns and max_turns > 0 else None) if talks else 1

    def begin(self, task: Task, seed: int) -> Episode:
        """Start with the environment's initial state."""
        return VerifiersEpisode(self, task)


class VerifiersEpisode(Episode):
    """One rollout's ``state``, kept as such environments expect it."""

    def __init__(self, environment: VerifiersEnvironment, task: Task) -> None:
        self._environment, self._task = environment, task
        self._is_text = getattr(environment.wrapped, "message_type", "chat") == "completion"
        info = copy.deepcopy(dict(task.info))
        row = {
            "prompt": "".join(message.content for message in task.messages)
            if self._is_text
            else [message.to_dict() for message in task.messages],
            "answer": task.answer,
            "info": info.get("info") or {},
            "task": info.get("task") or "default",
            "example_id": info.get("example_id", task.task_id),
        }
        self.state: dict[str, Any] = {
            **copy.deepcopy(row),
            "input": row,
            "id": row["example_id"],
            "completion": "" if self._is_text else [],
            "responses": [],
            "trajectory": [],
            "turn": 0,
            "timing": dict.fromkeys(_TIMES, 0.0),
            "error": None,
            "final_env_response": None,
            "sampling_args": {},
            "oai_tools": [],
            "metrics": {},
            "reward": None,
            "is_completed": False,
            "is_truncated": False,
        }
        self._num_replies = 0
        set_up = getattr(environment.wrapped, "setup_state", None)
        if set_up is not None:
            self.state = settled(set_up(self.state)) or self.state

    @property
    def opening(self) -> Sequence[ChatMessage]:
        """The task's messages, or the prompt as the environment has set it up."""
        prompt = self.state["prompt"]
        return _in_our_words(prompt)

    def answer(self, reply: str) -> Turn:
        """Let the environment end the episode or return the next messages."""
        self._record(reply)
        if self._is_completed():
            return Turn(done=True)
        response = settled(self._environment.wrapped.env_response(self._messages(), self.state))
        if isinstance(response, tuple):
            response, self.state = response
        self.state["completion"] = self.state["completion"] + response
        messages = _in_our_words(response)
        return Turn(messages, done=self._is_completed())

    def evaluate(self, completion: str, messages: Sequence[ChatMessage]) -> Evaluation | None:
        """Score with the rubric, including a last reply without a response."""
        replies = [message.content for message in messages if message.role == "assistant"]
        before = sum(message.role == "assistant" for message in self.opening)
        if len(replies) - before > self._num_replies:
            self._record(completion)
        return self._environment.rubric.score(self.state)

    def _record(self, reply: str) -> None:
        """Record a reply."""
        completion = reply if self._is_text else [{"role": "assistant", "content": reply}]
        step = {
            "prompt": self._messages(),
            "completion": completion,
            "response": None,
            "extras": {},
        }
        self.state["trajectory"].append(step)
        self.state["completion"] = self.state["completion"] + completion
        self.state["turn"] = self._num_replies = self._num_replies + 1

    def _messages(self) -> Any:  # noqa: ANN401 -- a text or a list of dictionaries
        return self.state["prompt"] + self.state["completion"]

    def _is_completed(self) -> bool:
        """Return whether the episode is over, in the interface of either version."""
        is_completed = getattr(self._environment.wrapped, "is_completed", None)
        if is_completed is None:
            return False
        arguments: Mapping[str, Any] = {"messages": self._messages(), "state": self.state}
        takes = inspect.signature(is_completed).parameters
        if "messages" in takes:
            return bool(settled(is_completed(arguments["messages"], self.state)))
        return bool(call_named(is_completed, {"state": self.state}))


def _in_our_words(prompt: str | Sequence[Mapping[str, Any]]) -> tuple[ChatMessage, ...]:
    if isinstance(prompt, str):
        return (ChatMessage("user", prompt),)
    return tuple(
        ChatMessage.from_dict({**each, "content": each.get("content") or ""}) for each in prompt
    )


class VerifiersTasks(TaskSource):
    """The rows of an environment's ``dataset``, and of its ``eval_dataset`` if it has one.

    A row's ``prompt`` is used unchanged; a ``question`` is converted to one with the environment's
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
        task_info = {
            "info": json.loads(info) if isinstance(info, str) else dict(info),
            "task": row.get("task") or "default",
            "example_id": row.get("example_id", row.get("id")),
        }
        data = {"prompt": prompt, "answer": row.get("answer") or "", "info": task_info}
        return task_of_row(data)

    def _messages(self, question: str) -> list[dict[str, Any]]:
        system = getattr(self._found, "system_prompt", None)
        few_shot = getattr(self._found, "few_shot", None) or ()
        first = [{"role": "system", "content": system}] if system else []
        return [*first, *map(dict, few_shot), {"role": "user", "content": question}]
