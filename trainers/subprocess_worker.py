"""``SubprocessWorker``: a process that executes requests sequentially for its parent.

Requests and answers are one line of JSON each. The process is reused, since importing torch takes
seconds, and ends with its parent in all cases.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

from ratchet import errors

_PARENT_GONE = 3
_POLL_SECONDS = 0.1
_FINISH_SECONDS = 30.0
Answer = dict[str, Any]


class SubprocessWorkerError(RuntimeError):
    """Failure of a request by an exception that is no RatchetError."""


class SubprocessWorker:
    """One process at a time, replaced after it has died.

    Parameters
    ----------
    module
        The module that the process runs; it calls :func:`serve`.
    description
        The purpose of its requests, for messages.
    log
        The file to which its standard error is appended; default: that of its parent.
    arguments
        Arguments of the module.
    environment
        Variables in addition to the parent's environment.
    """

    def __init__(
        self,
        module: str,
        description: str,
        *,
        log: Path | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._module, self._arguments, self._about = module, arguments, description
        self._log, self._environment = log, environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting = 0
        self._request: Mapping[str, Any] = {}
        self._changes, self._reading = threading.Lock(), threading.Lock()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The id of the process; None if none is running."""
        process = self._process
        return None if process is None else process.pid

    @property
    def is_closed(self) -> bool:
        """Whether it accepts no more requests."""
        return self._closed

    def ask(self, request: Mapping[str, Any]) -> None:
        """Submit a request; unread answers to earlier requests are discarded."""
        self._request = request
        self._send()

    def wait(self) -> Answer:
        """Wait for the answer to the last request; a process that dies is replaced once.

        Raises the error of the request, or StageFailedError if a second process has died.
        """
        answer = self._read()
        if answer is None:
            self._end()
            self._send()
            answer = self._read()
        if answer is None:
            raise errors.StageFailedError(f"{self._about}: two processes died, one {self._end()}.")
        if "error" in answer:
            raise error_of(answer)
        return answer

    def execute(self, request: Mapping[str, Any]) -> Answer:
        """Execute a request, and return its answer unchanged, even if it is an error."""
        self.ask(request)
        answer = self._read()
        if answer is None:
            printed = "" if self._log is None else f"; its output: {self._log}"
            answer = died(f"{self._about}: its process was ended {self._end()}{printed}.")
        return answer

    def finish(self) -> None:
        """Let the idle process exit."""
        with self._changes:
            self._closed, process = True, self._process
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_FINISH_SECONDS)
        self._end()

    def close(self) -> None:
        """Terminate the process, even during a request; waiting callers get an error."""
        with self._changes:
            self._closed = True
        self._end()

    def _send(self) -> None:
        left = memoryview(json.dumps(self._request).encode() + b"\n")
        with self._changes:
            if self._closed:
                raise SubprocessWorkerError(f"{self._about}: the worker is closed.")
            if self._process is None:
                self._process, self._waiting = self._start(), 0
            self._waiting += 1
            assert self._process.stdin is not None
            # a died process is detected when its answer is read
            with contextlib.suppress(BrokenPipeError):
                while left:
                    left = left[self._process.stdin.write(left) :]

    def _read(self) -> Answer | None:
        """Read the answer to the last request; None if the process has died."""
        process = self._process
        if process is None:
            return None
        assert process.stdout is not None
        line = b""
        with self._reading:
            while self._waiting:
                # with a timeout: interrupts reach a thread only while it runs Python code
                while not wait([process.stdout.fileno()], _POLL_SECONDS):
                    pass
                line = process.stdout.readline()
                if not line.endswith(b"\n"):
                    return None
                self._waiting -= 1
        answer: Answer = json.loads(line)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-P", "-m", self._module, *self._arguments]
        environment = {**os.environ, **self._environment}
        with contextlib.nullcontext() if self._log is None else self._log.open("ab") as log:
            # unbuffered: select() on the pipe does not see data left in a buffer
            return subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, env=environment, bufsize=0
            )

    def _end(self) -> str:
        """End the process if it is running; return how it ended."""
        with self._changes:
            process, self._process = self._process, None
        if process is None:
            return "before any request"
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.kill()
        code = process.wait()
        with self._reading:  # after the last read
            process.stdout.close()
        return f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def died(how: str) -> Answer:
    """Return the answer that represents a died process."""
    return {"error": errors.WorkerDiedError.__name__, "message": how, "traceback": ""}


def error_of(answer: Answer) -> Exception:
    """Return the error of an answer, with its original class if that is Ratchet's."""
    name, text = str(answer["error"]), str(answer["message"])
    kind: object = getattr(errors, name, None)
    error: Exception = SubprocessWorkerError(f"{name}: {text}")
    if isinstance(kind, type) and issubclass(kind, errors.RatchetError):
        error = kind(text)
    if answer["traceback"]:
        error.add_note(str(answer["traceback"]))
    return error


def serve(work: Callable[[Answer], Answer]) -> None:
    """Answer requests from standard input until it closes; the main function of the process.

    Output of libraries goes to standard error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    requests: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin, requests), daemon=True).start()
    while (line := requests.get()) is not None:
        request: Answer = json.loads(line)
        try:
            answer = work(request)
        except Exception as error:  # noqa: BLE001 -- the parent raises it
            text = "".join(traceback.format_exception(error))
            answer = {"error": type(error).__name__, "message": str(error), "traceback": text}
        line = json.dumps(answer)
        requests.task_done()
        answers.write(line + "\n")
        answers.flush()


def _listen(source: IO[str], requests: queue.Queue[str | None]) -> None:
    """Pass requests on; when the parent is gone, exit, even during a request."""
    for line in source:
        requests.put(line)
    if requests.unfinished_tasks:
        os._exit(_PARENT_GONE)
    requests.put(None)
