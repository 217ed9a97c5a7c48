"""A subprocess worker answers, is replaced when it dies, and ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from ratchet.errors import DataError, StageFailedError
from trainers.subprocess_worker import SubprocessWorker, SubprocessWorkerError

ANSWERING = """
import os, time
from pathlib import Path
from trainers.subprocess_worker import serve
from ratchet.errors import DataError

def work(request):
    print("not an answer")
    if "fail" in request:
        raise {"ours": DataError, "other": OSError}[request["fail"]]("no such thing")
    if "dies" in request and not Path(request["dies"]).exists():
        Path(request["dies"]).write_text("")
        os.kill(os.getpid(), 9)
    time.sleep(request.get("seconds", 0))
    return {"pid": os.getpid(), "twice": 2 * request.get("number", 0)}

serve(work)
"""
PARENT = """
import time
from trainers.subprocess_worker import SubprocessWorker
worker = SubprocessWorker("answering", "sums")
worker.ask({})
print(worker.wait()["pid"], flush=True)
worker.ask({"seconds": 60})
time.sleep(60)
"""


@pytest.fixture
def worker(tmp_path, monkeypatch):
    (tmp_path / "answering.py").write_text(ANSWERING)
    places = [str(tmp_path), str(Path(__file__).parents[2])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    made = SubprocessWorker("answering", "sums")
    yield made
    made.close()


def asked(worker, **request):
    worker.ask(request)
    return worker.wait()


def test_it_answers_and_says_what_went_wrong(worker):
    first = asked(worker, number=2)
    assert first["twice"] == 4
    with pytest.raises(DataError, match="no such thing"):
        asked(worker, fail="ours")
    with pytest.raises(SubprocessWorkerError, match="OSError: no such thing") as caught:
        asked(worker, fail="other")
    assert "in work" in caught.value.__notes__[0]
    worker.ask({"number": 3})  # its answer is not read
    assert asked(worker, number=4) == {"pid": first["pid"], "twice": 8}, "one process"


def test_it_is_replaced_once(worker, tmp_path):
    first = asked(worker, number=1)["pid"]
    os.kill(first, signal.SIGKILL)
    second = asked(worker, number=1)
    assert second["twice"] == 2
    assert second["pid"] != first
    third = asked(worker, number=3, dies=str(tmp_path / "died"))
    assert third["twice"] == 6, "it died of the request, and the next one did not"
    (tmp_path / "answering.py").write_text("import os; os.kill(os.getpid(), 9)")
    os.kill(third["pid"], signal.SIGKILL)
    with pytest.raises(StageFailedError, match="two processes died, one by signal SIGKILL"):
        asked(worker, number=1)


def test_closing_ends_the_work_and_whoever_waits(worker):
    pid = asked(worker)["pid"]
    worker.ask({"seconds": 60})
    met = []

    def wait():
        try:
            worker.wait()
        except SubprocessWorkerError as error:
            met.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    worker.close()
    waiting.join(5)
    assert "closed" in str(met[0])
    assert not psutil.pid_exists(pid)
    with pytest.raises(SubprocessWorkerError, match="closed"):
        worker.ask({})


def test_it_ends_with_its_parent(worker, tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    command = [sys.executable, str(tmp_path / "parent.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)
