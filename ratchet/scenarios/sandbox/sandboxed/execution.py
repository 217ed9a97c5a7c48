"""Run one program on its inputs, in a process that is discarded afterwards.

It receives the inputs, never the expected outputs: a program can only pass by computing the
answers.
"""

from __future__ import annotations

import builtins
import io
import json
import random
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

MAX_OUTPUT = 1_000_000
"""Characters that a program may print in one test, or bytes of all its results."""

_MAX_DETAIL = 300
_FILE = "<solution>"


class _TooManySteps(BaseException):
    """The program has taken more steps than it may."""


class _TooMuchOutput(BaseException):
    """The program has printed more than it may."""


class _BadOutput(BaseException):
    """The program returned a value that is not plain data."""


class _BoundedText(io.StringIO):
    """Standard output that is compared, up to a size."""

    def write(self, text: str, /) -> int:
        if self.tell() + len(text) > MAX_OUTPUT:
            raise _TooMuchOutput
        return super().write(text)


class _NoText(io.TextIOBase):
    """Standard output that is discarded."""

    def write(self, text: str, /) -> int:
        return len(text)


def run_program(job: dict[str, Any]) -> bytes:
    """Run a program on all its inputs.

    Parameters
    ----------
    job
        ``source``, ``mode``, ``entry``, ``givens``, ``max_steps``, and in the mode ``variables``
        the names that are compared (``wanted``).

    Returns
    -------
    bytes
        One line of JSON: ``status``, ``outputs`` of completed tests, ``detail``.
    """
    outputs: list[str] = []
    random.seed(0)
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # usually defined by site
    sys.stdout = sys.stderr = _NoText()
    status, detail = "finished", ""
    try:
        _run_all(job, outputs)
    except _TooManySteps:
        status = "too_many_steps"
    except _TooMuchOutput:
        status = "too_much_output"
    except SystemExit:
        status = "exited"
    except MemoryError:
        status = "out_of_memory"
    except _BadOutput as error:
        status, detail = "bad_output", str(error)
    except BaseException as error:  # noqa: BLE001 -- a program may raise anything
        status, detail = "error", _describe(error)
    sys.settrace(None)
    if sum(map(len, outputs)) > MAX_OUTPUT:
        status, outputs = "too_much_output", []
    head = json.dumps({"status": status, "detail": detail})[:-1]
    return f'{head}, "outputs": [{", ".join(outputs)}]}}'.encode()


def _run_all(job: dict[str, Any], outputs: list[str]) -> None:
    code = compile(job["source"], _FILE, "exec", dont_inherit=True)
    if job["max_steps"] is not None:
        _count_steps(job["max_steps"])
    if job["mode"] == "call":
        namespace = _fresh_namespace("solution")
        exec(code, namespace)
        entry = namespace[job["entry"]]
        for test_input in job["givens"]:
            outputs.append(_dump(entry(*test_input)))
        return
    for test_input in job["givens"]:
        run = _run_variables if job["mode"] == "variables" else _run_stdio
        outputs.append(_dump(run(code, test_input, job["wanted"])))


def _run_variables(code: CodeType, variables: dict[str, Any], names: list[str]) -> dict[str, Any]:
    namespace = _fresh_namespace("__main__")
    namespace.update(variables)
    exec(code, namespace)
    return {name: namespace[name] for name in names if name in namespace}


def _run_stdio(code: CodeType, stdin_text: str, names: list[str]) -> str:
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin_text.encode()), encoding="utf-8")
    text = _BoundedText()
    sys.stdout = text
    try:
        exec(code, _fresh_namespace("__main__"))
    except SystemExit:
        pass  # how many such programs end
    finally:
        sys.stdout = _NoText()
    return text.getvalue()


def _fresh_namespace(name: str) -> dict[str, Any]:
    return {"__name__": name, "__builtins__": builtins}


def _dump(value: object) -> str:
    """Serialise an output immediately, since the program may change it later."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise _BadOutput(_describe(error)) from None


def _count_steps(max_steps: int) -> None:
    """Stop after a number of the program's instructions, which is the same on every machine."""
    left = max_steps

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        nonlocal left
        if event == "call":
            if frame.f_code.co_filename != _FILE:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        left -= 1
        if left < 0:
            raise _TooManySteps
        return trace

    sys.settrace(trace)


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 -- the error's class may be the program's own
        text = "?"
    return f"{type(error).__name__}: {text}"[:_MAX_DETAIL]
