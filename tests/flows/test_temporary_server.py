"""A run's temporary Prefect server responds, and ends with the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

SCRIPT = """
import sys, time
from flows.process import temporary_server
temporary_server.launch(sys.argv[1])
temporary_server.ensure(sys.argv[1])
import os
from prefect.settings import PREFECT_UI_URL
print(os.environ["PREFECT_API_URL"])
print(PREFECT_UI_URL.value() or "no pages", flush=True)
time.sleep(100 if sys.argv[2] == "stay" else 0)
"""


def _answers(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "leave"])
def test_the_server_ends_with_its_process(tmp_path, end):
    environment = {name: value for name, value in os.environ.items() if "PREFECT" not in name}
    environment["PREFECT_HOME"] = str(tmp_path / "prefect")
    if end == "kill":  # the first server of a machine
        environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), "stay" if end == "kill" else "go"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    url, pages = (process.stdout.readline().strip() for _ in range(2))
    assert pages == "no pages", "links would be dead after the server has ended"
    if end == "kill":
        assert _answers(url)
        process.send_signal(signal.SIGKILL)
    process.wait(30)
    deadline = time.monotonic() + 15
    while _answers(url) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert url.startswith("http://127.0.0.1:")
    assert not _answers(url)
    assert end == "leave" or list((tmp_path / "cache").rglob("prefect-*.db"))
