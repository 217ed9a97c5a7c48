"""Many turns with a tool: programs that the model writes are run in a sandbox."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ratchet.language_models.types import ChatMessage
from ratchet.scenarios.language_task.environments.base import (
    ENVIRONMENTS,
    Episode,
    LanguageEnvironment,
    PlainEpisode,
    Turn,
)
from ratchet.scenarios.sandbox.programs import Program, run_programs
from ratchet.scenarios.sandbox.suites import TestCase, TestSuite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratchet.scenarios.language_task.task import Task

_CALL = re.compile(r"<python>(.*?)</python>", re.DOTALL)
_NO_INPUT = TestSuite("stdio", (TestCase("", ""),))
_RAN = frozenset({"passed", "wrong_answer"})


@ENVIRONMENTS.register("python_tool")
class PythonTool(LanguageEnvironment):
    """Runs ``<python>…</python>`` of a reply and answers ``<output>…</output>``.

    Only the last program of a reply is run; a reply without one ends the episode. A program has
    ``time_limit`` CPU seconds and ``memory_mb`` of memory, does not see earlier ones, and the model
    reads the first ``max_characters`` of its output or its error.
    """

    def __init__(
        self, time_limit: float = 2.0, memory_mb: int = 256, max_characters: int = 500
    ) -> None:
        self.time_limit, self.memory_mb = time_limit, memory_mb
        self.max_characters = max_characters

    def begin(self, task: Task, seed: int) -> Episode:
        """Start with the task's messages."""
        return _ToolEpisode(task, tool=self)

    def characters(self) -> str:
        """Return the characters of Python."""
        return "".join(map(chr, range(32, 127))) + "\n"

    def run(self, source: str) -> tuple[str, bool]:
        """Return a program's output or error, and whether it ended normally."""
        (result,) = run_programs(
            [Program(source, _NO_INPUT)], time_limit=self.time_limit, memory_mb=self.memory_mb
        )
        if result.status not in _RAN:
            return f"{result.status}: {result.detail}"[: self.max_characters], False
        return "".join(map(str, result.outputs))[: self.max_characters], True


@dataclass
class _ToolEpisode(PlainEpisode):
    """Counts the programs of one episode."""

    tool: PythonTool = field(kw_only=True)
    num_calls: int = 0
    num_failed: int = 0

    def answer(self, reply: str) -> Turn:
        """Run the reply's program, if any."""
        self.said.append(reply)
        programs = _CALL.findall(reply)
        if not programs:
            return Turn(done=True)
        output, ran = self.tool.run(programs[-1].strip("\n") + "\n")
        self.num_calls += 1
        self.num_failed += not ran
        return Turn((ChatMessage("tool", f"<output>{output.rstrip()}</output>"),))

    def metrics(self) -> Mapping[str, float]:
        """Return how many programs were run, and how many of them failed."""
        return {"tool_calls": float(self.num_calls), "tool_failures": float(self.num_failed)}
