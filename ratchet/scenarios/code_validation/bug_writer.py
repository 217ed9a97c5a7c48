"""Bugs written by a language model: prompts, replies, and the checks of each bug."""

from __future__ import annotations

import ast
import io
import logging
import re
import tokenize
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Literal, TypeAlias

from ratchet.language_models.types import ChatMessage, ChatRequest, Completion
from ratchet.scenarios.code_validation.mutation import mutants, normalize
from ratchet.scenarios.sandbox.programs import BUGGY, Program, ProgramResult
from ratchet.seeding import numpy_generator, service_seed
from ratchet.syntax import parse_python

if TYPE_CHECKING:
    from ratchet.language_models.auxiliary_calls import ModelCalls
    from ratchet.scenarios.code_validation.parameters import BugGeneratorParameters

FOLDER = Path(__file__).parent / "templates" / "bug_generator"
FILES = {f"bug_generator/{name}": FOLDER / name for name in ("system.txt", "user.txt")}
"""The templates of the prompt, by readable name."""

_BLOCK = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_NO_PROGRAM = (SyntaxError, ValueError, RecursionError, MemoryError)
_DUMMY_FAILURES = 0.25

_LOGGER = logging.getLogger(__name__)
BUG_GENERATOR = "bug_generator"
Fault: TypeAlias = Literal["no_program", "not_new", "explained", "not_run", "no_bug"]
"""Reasons to reject a reply: it does not parse; it is the correct program, or a duplicate; it
explains the bug; it completes no test; it passes all tests.
"""
RunPrograms: TypeAlias = "Callable[[Sequence[Program]], list[ProgramResult]]"


def bug_prompt(question: str, solution: str) -> tuple[ChatMessage, ...]:
    """Return the prompt about a problem and a program that solves it."""
    system, user = (file.read_text(encoding="utf-8") for file in FILES.values())
    user_text = Template(user).substitute(question=question, solution=solution)
    return ChatMessage("system", system.strip()), ChatMessage("user", user_text.strip())


def read_program(reply: str) -> str | None:
    """Return the last code block of a reply, or the full reply without one; None if empty."""
    blocks = _BLOCK.findall(reply)
    program = (blocks[-1] if blocks else reply).strip("\n").rstrip()
    return program or None


def plain_form(program: str) -> str | None:
    """Return a program without comments and formatting; None if it does not parse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            return normalize(program)
        except _NO_PROGRAM:
            return None


def remarks(program: str) -> set[str]:
    """Return a program's text for people: comments, and string expressions without effect."""
    texts = {
        token.string.lstrip("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(program).readline)
        if token.type == tokenize.COMMENT
    }
    for node in ast.walk(parse_python(program)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts.add(str(node.value.value).strip())
    return texts


def dummy_reply(request: ChatRequest) -> Completion:
    """Answer without a model, by the request's seed: mostly a mutant, now and then no program."""
    rng = numpy_generator(request.seed or 0, "bug_generator", purpose="dummy")
    solution = read_program(request.messages[-1].content) or ""
    program = None if rng.random() < _DUMMY_FAILURES else next(mutants(solution, rng), None)
    text = "I can't." if program is None else f"```python\n{program.source}\n```"
    words = sum(len(message.content.split()) for message in request.messages)
    return Completion(text, "stop", words, len(text.split()), request.model)


@dataclass(frozen=True)
class BugTask:
    """A correct program for which a bug is requested.

    Parameters
    ----------
    name
        Unique in the dataset; also the name of its calls.
    program
        Converts a source to the program that runs on the problem's tests.
    is_normalized
        Whether programs of the dataset are normalised, without comments and formatting.
    """

    name: str
    question: str
    solution: str
    program: Callable[[str], Program]
    is_normalized: bool = False


@dataclass(frozen=True)
class _Candidate:
    task: BugTask
    source: str
    plain: str


class BugWriter:
    """Client that requests bugs from one model; ``counts`` has bugs and replies by outcome.

    Parameters
    ----------
    seed
        Each call's seed is derived from it, the task's name and the number of the attempt.
    calls
        Client of the model.
    """

    def __init__(self, parameters: BugGeneratorParameters, seed: int, calls: ModelCalls) -> None:
        self.parameters = parameters
        self.counts: Counter[str] = Counter()
        self._seed = seed
        self._calls = calls

    @property
    def origin(self) -> str:
        """The source of its programs, as recorded in datasets."""
        return f"{BUG_GENERATOR}:{self.parameters.model_name}"

    def write(self, tasks: Sequence[BugTask], run: RunPrograms) -> dict[str, str]:
        """Return buggy programs by task name, except for tasks whose attempts all failed.

        All tasks are requested concurrently; tasks whose reply is rejected are retried. No two
        programs of a question are the same. ``run`` runs programs on their tests. Raises
        LanguageModelError if calls failed; completed ones are stored.
        """
        written: dict[str, str] = {}
        known: dict[str, set[str]] = {}
        for task in tasks:
            known.setdefault(task.question, set()).add(plain_form(task.solution) or task.solution)
        for attempt in range(self.parameters.num_attempts):
            open_tasks = [task for task in tasks if task.name not in written]
            if not open_tasks:
                break
            candidates = list(self._candidates(self._ask(open_tasks, attempt), open_tasks, known))
            results = run([each.task.program(each.source) for each in candidates])
            for candidate, result in zip(candidates, results, strict=True):
                fault = _fault(result)
                if fault is None:
                    written[candidate.task.name] = candidate.source
                else:
                    self.counts[fault] += 1
        self.counts.update(wanted=len(tasks), written=len(written))
        return written

    def report(self, what: str, instead: str) -> None:
        """Log the outcome; ``instead`` describes what replaces bugs that were not written."""
        counts = self.counts
        lacking = counts["wanted"] - counts["written"]
        level = logging.WARNING if lacking else logging.INFO
        tally = ", ".join(f"{name}: {counts[name]}" for name in sorted(counts))
        _LOGGER.log(
            level,
            "bug_generator: %s wrote %d of %d buggy programs of the %s set; %d %s (%s)",
            *(self.parameters.model_name, counts["written"], counts["wanted"], what),
            *(lacking, instead, tally),
        )

    def _ask(self, tasks: Iterable[BugTask], attempt: int) -> dict[str, str]:
        """Return replies by the names of tasks."""
        parameters = self.parameters
        names = {task.name: f"{task.name}/a{attempt}" for task in tasks}
        requests = {
            names[task.name]: ChatRequest(
                parameters.model_name,
                bug_prompt(task.question, task.solution),
                temperature=parameters.temperature,
                top_p=parameters.top_p,
                max_tokens=parameters.max_tokens,
                seed=service_seed(self._seed, BUG_GENERATOR, attempt, task.name),
                reasoning_effort=parameters.reasoning_effort,
                chat_template_kwargs=parameters.chat_template_kwargs,
                extra_body=parameters.extra_body,
            )
            for task in tasks
        }
        replies = self._calls.ask(BUG_GENERATOR, parameters, requests, dummy_reply)
        self.counts["replies"] += len(replies)
        return {task: replies[name].text for task, name in names.items()}

    def _candidates(
        self, replies: Mapping[str, str], tasks: Iterable[BugTask], known: dict[str, set[str]]
    ) -> Iterable[_Candidate]:
        """Iterate over the replies that deserve a run; count the others."""
        for task in tasks:
            parsed_reply = _read(task, replies[task.name], known[task.question])
            if isinstance(parsed_reply, str):
                self.counts[parsed_reply] += 1
            else:
                known[task.question].add(parsed_reply.plain)
                yield parsed_reply


def _read(task: BugTask, reply: str, known: set[str]) -> _Candidate | Fault:
    source = read_program(reply)
    plain = None if source is None else plain_form(source)
    if source is None or not plain:
        return "no_program"
    if plain in known:
        return "not_new"
    source = plain if task.is_normalized else source
    if not remarks(source) <= remarks(task.solution):
        return "explained"
    return _Candidate(task, source, plain)


def _fault(result: ProgramResult) -> Fault | None:
    """Return why a program is rejected: it must complete at least one test, and fail one."""
    if result.passed:
        return "no_bug"
    ran = result.status == "wrong_answer" or bool(result.outputs)
    return None if result.status in BUGGY and ran else "not_run"
