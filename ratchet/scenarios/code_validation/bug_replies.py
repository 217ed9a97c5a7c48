"""What a chat model is asked that writes a bug into a program, and what is read of its reply."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from pathlib import Path
from string import Template

from ratchet.language_models.types import ChatMessage, ChatRequest, Completion
from ratchet.scenarios.code_validation.mutation import mutants, normalize
from ratchet.seeding import numpy_generator
from ratchet.syntax import parse_python

FOLDER = Path(__file__).parent / "templates" / "bug_generator"
FILES = {f"bug_generator/{name}": FOLDER / name for name in ("system.txt", "user.txt")}
"""The templates of the prompt, by readable name."""

_BLOCK = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_NO_PROGRAM = (SyntaxError, ValueError, RecursionError, MemoryError)
_DUMMY_FAILURES = 0.25


def bug_prompt(question: str, solution: str) -> tuple[ChatMessage, ...]:
    """Write what is asked about a problem and a program that solves it."""
    system, user = (file.read_text(encoding="utf-8") for file in FILES.values())
    told = Template(user).substitute(question=question, solution=solution)
    return ChatMessage("system", system.strip()), ChatMessage("user", told.strip())


def read_program(reply: str) -> str | None:
    """Return the last block of code of a reply, or all of it where there is none; None if empty."""
    blocks = _BLOCK.findall(reply)
    program = (blocks[-1] if blocks else reply).strip("\n").rstrip()
    return program or None


def plain_form(program: str) -> str | None:
    """Return a program without comments and manner of writing; None if it is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            return normalize(program)
        except _NO_PROGRAM:
            return None


def remarks(program: str) -> set[str]:
    """Return what a program says to people: its comments, and texts that nothing is done with."""
    said = {
        token.string.lstrip("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(program).readline)
        if token.type == tokenize.COMMENT
    }
    for node in ast.walk(parse_python(program)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            said.add(str(node.value.value).strip())
    return said


def dummy_reply(request: ChatRequest) -> Completion:
    """Answer without a model, by the request's seed: mostly a mutant, now and then no program."""
    rng = numpy_generator(request.seed or 0, "bug_generator", purpose="dummy")
    solution = read_program(request.messages[-1].content) or ""
    program = None if rng.random() < _DUMMY_FAILURES else next(mutants(solution, rng), None)
    text = "I can't." if program is None else f"```python\n{program.source}\n```"
    words = sum(len(message.content.split()) for message in request.messages)
    return Completion(text, "stop", words, len(text.split()), request.model)
