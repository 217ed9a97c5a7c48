"""``SubprocessWorker``: a process that answers requests one by one, beside the work of its parent.

A request and its answer are a line of JSON each. It is kept for the next request, since importing
torch takes seconds, and ends with its parent, however that ends.
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
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

from ratchet import errors

_PARENT_GONE = 3
_LOOK_EVERY = 0.1
_FINISH_SECONDS = 30.0
Answer = dict[str, Any]


class SubprocessWorkerError(RuntimeError):
    """What a request failed with, where that was no error of Ratchet's."""


class SubprocessWorker:
    """One process at a time; a new one after it has died.

    Parameters
    ----------
    module
        What the process runs; it calls :func:`serve`.
    about
        What it is asked for, for messages.
    log
        The file to which its standard error is added; that of its parent without.
    environment
        What its environment has beside its parent's.
    """

    def __init__(
        self,
        module: str,
        about: str,
        *,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._module, self._about = module, about
        self._log, self._environment = log, environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting = 0
        self._request: Mapping[str, Any] = {}
        self._changes, self._reading = threading.Lock(), threading.Lock()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The number of the process; None while there is none."""
        process = self._process
        return None if process is None else process.pid

    @property
    def is_closed(self) -> bool:
        """Whether it answers no more."""
        return self._closed

    def ask(self, request: Mapping[str, Any]) -> None:
        """Have a request worked; the answer to one that nobody has waited for is forgotten.

        Raises
        ------
        SubprocessWorkerError
            If it was closed.
        """
        self._request = request
        self._send()

    def wait(self) -> Answer:
        """Wait for the answer to what was asked last; a process that dies is replaced once.

        Raises
        ------
        RatchetError, SubprocessWorkerError
            What the request failed with.
        StageFailedError
            If a second process has died.
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

    def answer(self) -> Answer:
        """Wait for the answer as it is: an error is one too, and so is that the process died."""
        answer = self._read()
        if answer is None:
            answer = died(f"{self._about}: its process was ended {self._end()}{self._printed}.")
        return answer

    def finish(self) -> None:
        """Have the process, which has nothing to do, come to its end."""
        with self._changes:
            self._closed, process = True, self._process
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_FINISH_SECONDS)
        self._end()

    def close(self) -> None:
        """End the process, in the middle of its work if need be; whoever waits gets an error."""
        with self._changes:
            self._closed = True
        self._end()

    def _send(self) -> None:
        left = memoryview(json.dumps(self._request).encode() + b"\n")
        with self._changes:
            if self._closed:
                raise SubprocessWorkerError(f"{self._about}: it was closed.")
            if self._process is None:
                self._process, self._waiting = self._start(), 0
            self._waiting += 1
            assert self._process.stdin is not None
            # one that has died is noticed by whoever reads
            with contextlib.suppress(BrokenPipeError):
                while left:
                    left = left[self._process.stdin.write(left) :]

    def _read(self) -> Answer | None:
        """Read up to the answer to the last request; None if the process has died."""
        process = self._process
        if process is None:
            return None
        assert process.stdout is not None
        line = b""
        with self._reading:
            while self._waiting:
                # not for ever: a thread that is to be interrupted has to come back to Python
                while not wait([process.stdout.fileno()], _LOOK_EVERY):
                    pass
                line = process.stdout.readline()
                if not line.endswith(b"\n"):
                    return None
                self._waiting -= 1
        answer: Answer = json.loads(line)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-P", "-m", self._module]
        environment = {**os.environ, **self._environment}
        with contextlib.nullcontext() if self._log is None else self._log.open("ab") as log:
            # unbuffered: what is left in a buffer would not be seen by whoever waits for the pipe
            return subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, env=environment, bufsize=0
            )

    @property
    def _printed(self) -> str:
        return f"; what it printed: {self._log}" if self._log is not None else ""

    def _end(self) -> str:
        """End the process if it has not ended; return how it did."""
        with self._changes:
            process, self._process = self._process, None
        if process is None:
            return "before it was asked"
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.kill()
        code = process.wait()
        with self._reading:  # whoever reads has come to the end
            process.stdout.close()
        return f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def died(how: str) -> Answer:
    """Return what stands for the answer of a process that has died."""
    return {"error": errors.WorkerDiedError.__name__, "message": how, "traceback": ""}


def error_of(answer: Answer) -> Exception:
    """Return what the process has met, as what it was there."""
    name, text = str(answer["error"]), str(answer["message"])
    kind: object = getattr(errors, name, None)
    error: Exception = SubprocessWorkerError(f"{name}: {text}")
    if isinstance(kind, type) and issubclass(kind, errors.RatchetError):
        error = kind(text)
    if answer["traceback"]:
        error.add_note(str(answer["traceback"]))
    return error


def serve(work: Callable[[Answer], Answer]) -> None:
    """Be the process: answer requests until there are no more.

    What libraries print goes to standard error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    requests: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin, requests), daemon=True).start()
    while (line := requests.get()) is not None:
        answer = json.dumps(_answered(work, json.loads(line)))
        requests.task_done()
        answers.write(answer + "\n")
        answers.flush()


def _listen(source: IO[str], requests: queue.Queue[str | None]) -> None:
    """Pass requests on; when the parent is gone, end, in the middle of work if need be."""
    for line in source:
        requests.put(line)
    if requests.unfinished_tasks:
        os._exit(_PARENT_GONE)
    requests.put(None)


def _answered(work: Callable[[Answer], Answer], request: Answer) -> Answer:
    try:
        return work(request)
    except Exception as error:  # noqa: BLE001 -- the parent raises it
        text = "".join(traceback.format_exception(error))
        return {"error": type(error).__name__, "message": str(error), "traceback": text}
