"""``run_suite``: run ``inspect-ai`` in a separate process against a served model."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import DataError, SuiteFailedError
from ratchet.language_models.suites import driver
from ratchet.language_models.suites.log import SuiteResult, read_log

if TYPE_CHECKING:
    from pydantic import JsonValue

    from ratchet.language_models.endpoints import ModelAddress
    from ratchet.language_models.suites.task import SuiteTask

_POLL_SECONDS = 0.1
_LOCAL = "127.0.0.1,localhost"


@dataclass(frozen=True)
class Suite:
    """A suite and its settings.

    Attributes
    ----------
    name
        The suite's name in the experiment.
    python
        The interpreter that has ``inspect-ai``.
    seed
        Seed of the completions, and of all unseeded sampling in the task.
    """

    name: str
    task: SuiteTask
    python: str
    seed: int
    max_tokens: int
    arguments: dict[str, JsonValue] = field(default_factory=dict)
    temperature: float = 0.0
    limit: int | None = None
    max_connections: int = 10

    def key_parameters(self) -> dict[str, Any]:
        """Return the inputs of the answers, apart from the task's code, as plain data."""
        return {
            "task": self.task.name,
            "arguments": self.arguments,
            "seed": self.seed,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "limit": self.limit,
        }

    def driver_input(self, model: ModelAddress, log_dir: Path) -> dict[str, Any]:
        """Return the driver's input."""
        return {
            **self.key_parameters(),
            "task": self.task.reference,
            "model": model.model,
            "url": model.url,
            "max_connections": self.max_connections,
            "log_dir": str(log_dir),
        }


def run_suite(suite: Suite, model: ModelAddress, log_file: Path) -> SuiteResult:
    """Run a suite and save its log as JSON.

    Raises SuiteFailedError if it ended without a result; a retry may succeed.
    """
    prefix = f"suite {suite.name}, {suite.task.reference}"
    with tempfile.TemporaryDirectory(prefix="ratchet-suite-") as name:
        work = Path(name)
        logs, output = work / "logs", work / "output.txt"
        request = work / "request.json"
        request.write_text(json.dumps(suite.driver_input(model, logs)), encoding="utf-8")
        with output.open("wb") as sink:
            command = [suite.python, driver.__file__, str(request)]
            environment = _environment(suite.python, model)
            with _process(command, environment, work, sink) as process:
                code = _wait(process)
        printed = output.read_text("utf-8", "replace").strip()
        written_logs = sorted(logs.glob("*.json"))
        if code == driver.NOT_STARTED:
            raise DataError(f"{prefix}: inspect-ai could not start: {printed[-2000:]}")
        if code or len(written_logs) != 1:
            raise SuiteFailedError(
                f"{prefix}: inspect-ai ended with code {code} and {len(written_logs)} logs,"
                f" expected one. Its last output: {printed[-2000:]}"
            )
        try:
            result = read_log(written_logs[0])
        except SuiteFailedError as error:
            raise SuiteFailedError(f"{prefix}: {error}") from error
        log_file.write_bytes(written_logs[0].read_bytes())
        return result


def _environment(python: str, model: ModelAddress) -> dict[str, str]:
    """Return the process's environment: the model's key, and no proxy for this machine."""
    environment = environment_for(python)
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = ",".join(filter(None, [environment.get(name), _LOCAL]))
    return {**environment, driver.KEY_VARIABLE: model.api_key}


@contextlib.contextmanager
def _process(
    command: list[str],
    environment: dict[str, str],
    folder: Path,
    output: Any,  # noqa: ANN401
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that ends with the block, and with this process."""
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=folder,  # it reads a file .env in its working folder
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # this process handles Ctrl-C
    )
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        if process.poll() is None:
            process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait in short steps, between which the thread can be interrupted."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_POLL_SECONDS)


def environment_for(python: str) -> dict[str, str]:
    """Return the environment for an interpreter.

    Without variables that set options of ``inspect-ai``, and for another interpreter without
    Ratchet's modules.
    """
    python_variables = {"PYTHONPATH", "PYTHONHOME"} if python != sys.executable else set()
    return {
        name: value
        for name, value in os.environ.items()
        if name not in python_variables and not name.startswith("INSPECT_")
    }
