"""Commands whose terminal or pipe is closed end cleanly, or continue without output."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

WRITES = """
import sys
from flows.process.messages import survive_closing
survive_closing()
for number in range(20_000):
    print("line", number)
print("the end", file=sys.stderr)
"""
LOGS = """
import logging, sys
from prefect.logging.configuration import setup_logging
from flows.process.messages import outlive_reader
setup_logging()
outlive_reader()
sys.stdin.readline()
logging.warning("nobody reads this")
print("nor this")
sys.exit(7)
"""
WAITS = """
import time
from flows.process.messages import survive_closing
survive_closing()
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    raise SystemExit(130)
"""


def test_a_command_continues_when_its_output_pipe_is_closed() -> None:
    command = f"'{sys.executable}' -c '{WRITES}' | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout == "line 0\n"
    assert done.stderr == "the end\n"
    assert done.returncode == 0


@pytest.mark.slow
def test_logging_continues_when_the_worker_is_gone() -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", LOGS]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as one:
        assert one.stdout is not None
        assert one.stderr is not None
        one.stdout.close()
        one.stderr.close()
        one.communicate(b"go on\n")
        assert one.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_terminal_interrupts_a_command(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
        one.send_signal(number)
        assert one.wait(240) == 130
