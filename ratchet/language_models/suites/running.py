"""``run_suite``: have ``inspect-ai`` ask a model that is served, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import DataError, SuiteFailedError
from ratchet.language_models.suites import driver
from ratchet.language_models.suites.installation import environment_for
from ratchet.language_models.suites.log import SuiteResult, read_log

if TYPE_CHECKING:
    from pydantic import JsonValue

    from ratchet.language_models.endpoints import ModelAddress
    from ratchet.language_models.suites.task import SuiteTask

_POLL_SECONDS = 0.1
_LOCAL = "127.0.0.1,localhost"


@dataclass(frozen=True)
class Suite:
    """What a suite asks a model.

    Attributes
    ----------
    name
        What the experiment calls it.
    python
        The interpreter that has ``inspect-ai``.
    seed
        Of the answers, and of all that the task draws without a seed of its own.
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
        """Return what decides the answers, beside the task's code, as plain data."""
        return {
            "task": self.task.name,
            "arguments": self.arguments,
            "seed": self.seed,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "limit": self.limit,
        }

    def asked(self, model: ModelAddress, log_dir: Path) -> dict[str, Any]:
        """Return what the driver reads."""
        return {
            **self.key_parameters(),
            "task": self.task.reference,
            "model": model.model,
            "url": model.url,
            "max_connections": self.max_connections,
            "log_dir": str(log_dir),
        }


def run_suite(suite: Suite, model: ModelAddress, log_file: Path) -> SuiteResult:
    """Run a suite and keep its log, as JSON.

    Raises
    ------
    DataError
        If the task can't be had, or not be asked like this.
    SuiteFailedError
        If it ended without a result; another time it may have one.
    """
    about = f"suite {suite.name}, {suite.task.reference}"
    with tempfile.TemporaryDirectory(prefix="ratchet-suite-") as name:
        work = Path(name)
        logs, output = work / "logs", work / "output.txt"
        asked = work / "asked.json"
        asked.write_text(json.dumps(suite.asked(model, logs)), encoding="utf-8")
        with output.open("wb") as sink:
            command = [suite.python, driver.__file__, str(asked)]
            environment = _environment(suite.python, model)
            with _process(command, environment, work, sink) as process:
                code = _wait(process)
        said = output.read_text("utf-8", "replace").strip()
        found = sorted(logs.glob("*.json"))
        if code == driver.NOT_BEGUN:
            raise DataError(f"{about}: inspect-ai could not begin: {said[-2000:]}")
        if code or len(found) != 1:
            raise SuiteFailedError(
                f"{about}: inspect-ai ended with code {code} and {len(found)} logs, expected one."
                f" It said last: {said[-2000:]}"
            )
        try:
            result = read_log(found[0])
        except SuiteFailedError as error:
            raise SuiteFailedError(f"{about}: {error}") from error
        log_file.write_bytes(found[0].read_bytes())
        return result


def _environment(python: str, model: ModelAddress) -> dict[str, str]:
    """Return the process's environment: the model's key in it, and no proxy before this machine."""
    found = environment_for(python)
    for name in ("NO_PROXY", "no_proxy"):
        found[name] = ",".join(filter(None, [found.get(name), _LOCAL]))
    return {**found, driver.KEY_VARIABLE: model.api_key}


@contextlib.contextmanager
def _process(
    command: list[str],
    environment: dict[str, str],
    folder: Path,
    output: Any,  # noqa: ANN401
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that ends with the block, and with this process, however that ends."""
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=folder,  # it reads a file .env where it starts
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is this process's to hear
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
