"""A service behind a fault-injecting proxy, both separate processes, and runs that use them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECRET = "sk-game-0123456789-never-write-me-down"
ROOT = HERE.parent.parent.parent


def wait_for(path: Path, seconds: float = 300.0) -> str:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)
    return path.read_text()


class Scene:
    """One service, one proxy and one list of faults."""

    def __init__(self, lab, folder: Path, rules: list[dict]) -> None:
        self.lab = lab
        self.folder = folder
        self.rules = rules
        folder.mkdir(parents=True)
        self.output = (folder / "output.txt").open("wb")
        self.service = self._start_service()
        upstream = wait_for(folder / "service-port")
        self.upstream = f"http://127.0.0.1:{upstream}"
        (folder / "plan.json").write_text(json.dumps({"upstream": self.upstream, "rules": rules}))
        self.proxy = self._start([str(HERE / "fault_proxy.py"), str(folder)])
        self.url = f"http://127.0.0.1:{wait_for(folder / 'port')}/v1"
        self.closing = threading.Event()
        self.watcher = threading.Thread(target=self._restart_when_asked, daemon=True)
        self.watcher.start()

    def _start(self, command: list[str]) -> subprocess.Popen:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{HERE}", "GAME_KEY": SECRET}
        return subprocess.Popen(
            [sys.executable, *command], env=environment, stdout=self.output, stderr=self.output
        )

    def _start_service(self, port: str = "0") -> subprocess.Popen:
        script, home = str(HERE / "game_service.py"), str(self.folder / "service")
        return self._start([script, home, str(self.folder / "service-port"), port])

    def _restart_when_asked(self) -> None:
        flag, port_file = self.folder / "restart", self.folder / "service-port"
        while not self.closing.wait(0.02):
            if not flag.exists():
                continue
            port = port_file.read_text()
            self.service.send_signal(signal.SIGKILL)
            self.service.wait()
            port_file.unlink()
            self.service = self._start_service(port)
            wait_for(port_file)
            flag.unlink()

    def play(self, hyper_params: dict, settings: dict) -> dict:
        """Run, and re-run while the run is killed; return the result."""
        environment = {"RATCHET_LLM_URL": self.url, "GAME_KEY": SECRET}
        for _ in range(len(self.rules) + 1):
            process, result = self.lab.start(hyper_params, settings, environment=environment)
            (self.folder / "pid").write_text(str(process.pid))
            code = process.wait(240)
            if code == 0:
                return json.loads(result.read_text())
            if code != -signal.SIGKILL:
                break
        output = self.lab.folder / f"output-{self.lab._count}.txt"
        raise AssertionError(output.read_text())

    def fired(self) -> list[str]:
        """List the actions of the proxy."""
        lines = (self.folder / "calls.jsonl").read_text().split("\n")[:-1]
        return [action for line in lines if (action := json.loads(line)["action"])]

    def calls(self) -> Counter:
        """Count the requests by method and path."""
        lines = [
            json.loads(line) for line in (self.folder / "calls.jsonl").read_text().split("\n")[:-1]
        ]
        return Counter((line["method"], line["path"].split("?")[0]) for line in lines)

    def jobs(self) -> list[dict]:
        """List all jobs of the service."""
        request = urllib.request.Request(
            f"{self.upstream}/v1/fine_tuning/jobs?limit=100",
            headers={"Authorization": f"Bearer {SECRET}"},
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["data"]

    def files_with_the_key(self) -> list[Path]:
        """List files of the run, service and proxy that contain the API key."""
        written = [path for path in self.lab.folder.rglob("*") if path.is_file()]
        assert len(written) > 50
        return [path for path in written if SECRET.encode() in path.read_bytes()]

    def close(self) -> None:
        self.closing.set()
        self.watcher.join()
        for process in (self.proxy, self.service):
            process.kill()
            process.wait()
        self.output.close()


@pytest.fixture(scope="session")
def new_scene(new_lab) -> Callable[..., Scene]:
    """Return a function that creates a scene with the given rules in a separate environment."""

    def make(*rules: dict) -> Scene:
        lab = new_lab()
        return Scene(lab, lab.folder / "scene", list(rules))

    return make
