"""Test environment for flows: tiny experiments in a folder, run in this or other processes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

HERE = Path(__file__).parent


class Lab:
    """Tiny experiments in a separate folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log.txt"
        self.environment: dict[str, str] = {}
        self._count = 0

    def settings(self, **changes: Any) -> dict[str, Any]:
        data = {
            "home": str(self.folder / "home"),
            "runs": str(self.folder / "runs"),
            "base_dir": str(HERE),
            "iterations_per_task": 3,
            "retries": 0,
            "tracking": False,
            "progress": "none",
        }
        return {**data, **changes}

    def hyper_params(self, **changes: Any) -> dict[str, Any]:
        data: dict[str, Any] = {
            "scenario": "graph_isomorphism",
            "dataset": "generated",
            "trainer": {"module_path": "tiny_trainer.py", "class_name": "TinyTrainer"},
            "pretrain_agents": True,
            "rl": {"num_iterations": 7, "lr": 0.5, "num_test_iterations": 10},
            "graph_isomorphism": {"num_pairs": 40},
        }
        for path, value in changes.items():
            section, _, name = path.partition("__")
            if name:
                data[section] = {**data.get(section, {}), name: value}
            else:
                data[path] = value
        return data

    def start(
        self,
        hyper_params: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
        *,
        action: str = "run",
        environment: dict[str, str] | None = None,
        **request: Any,
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a process that runs an experiment; return it with the path of its result."""
        self._count += 1
        content = {
            "action": action,
            "hyper_params": hyper_params or self.hyper_params(),
            "settings": settings or self.settings(),
            "arms": None,
            "force": False,
            **request,
        }
        source = self.folder / f"request-{self._count}.json"
        result = self.folder / f"result-{self._count}.json"
        source.write_text(json.dumps(content))
        with (self.folder / f"output-{self._count}.txt").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "run_tiny.py"), str(source), str(result)],
                env={**self.child_environment(), **(environment or {})},
                cwd=HERE.parent.parent,
                stdout=output,
                stderr=output,
            )
        return process, result

    def run(self, *args: Any, expect: int | None = 0, **kwargs: Any) -> dict[str, Any]:
        """Run an experiment in a separate process and wait for it."""
        process, result = self.start(*args, **kwargs)
        code = process.wait(480)
        output = (self.folder / f"output-{self._count}.txt").read_text()
        if expect is not None:
            assert code == expect, output
        return json.loads(result.read_text()) if code == 0 else {"output": output}

    def kill(self, fault: str, *args: Any, **kwargs: Any) -> None:
        """Run an experiment that is killed by a fault, and check that the fault occurred."""
        once = self.folder / f"fault-{self._count}"
        environment = {"RATCHET_FAULT": f"{fault};kind=kill;once={once}"}
        self.run(*args, expect=-signal.SIGKILL, environment=environment, **kwargs)
        assert once.exists()

    def done(self) -> list[str]:
        """List the work done by all processes."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def weights(self, result: dict[str, Any], arm: str = "main") -> dict[str, str]:
        """Return the SHA-256 of each file of the final state."""
        return self.hashes(self.folder / "home" / "store" / "stages" / result["states"][arm])

    @staticmethod
    def hashes(stage: Path) -> dict[str, str]:
        """Return the SHA-256 of each state file in a stage's folder."""
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((stage / "state").iterdir())
        }

    @staticmethod
    def read(path: Path) -> dict[str, Any]:
        """Read the result of a process."""
        result: dict[str, Any] = json.loads(path.read_text())
        return result

    def retry(self, flow_run_id: str) -> None:
        """Retry a flow run with Prefect's command line, after a crash that no worker reported."""
        from prefect import get_client
        from prefect.states import Crashed

        async def crash() -> None:
            async with get_client() as client:
                run = await client.read_flow_run(UUID(flow_run_id))
                if run.state is not None and run.state.is_running():
                    await client.set_flow_run_state(run.id, Crashed(), force=True)

        asyncio.run(crash())
        command = [sys.executable, "-m", "prefect", "flow-run", "retry", flow_run_id]
        finished = subprocess.run(
            [*command, "--entrypoint", "flows.retrying.experiment"],
            env=self.child_environment(),
            cwd=self.folder,  # a user's, which has no folder `flows`
            capture_output=True,
            text=True,
            timeout=480,
            check=False,
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr

    def metrics(self, result: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Return the lines of metrics.jsonl, without times."""
        lines = (Path(result["folder"]) / "metrics.jsonl").read_text().split("\n")[:-1]
        entries = [json.loads(line) for line in lines]
        assert not any("replaces" in entry for entry in entries)
        return [
            (e["arm"], e["stage"], e["iteration"], tuple(sorted(e["values"].items())))
            for e in entries
        ]

    def child_environment(self) -> dict[str, str]:
        """Return the environment of the processes."""
        from prefect.settings import PREFECT_API_URL

        return {
            **os.environ,
            "PREFECT_API_URL": str(PREFECT_API_URL.value()),
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PYTHONPATH": str(HERE.parent.parent),
            "TINY_LOG": str(self.log),
            **self.environment,
        }


@pytest.fixture(scope="session")
def new_lab(prefect_server: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Lab]:
    """Return a function that creates test environments."""
    return lambda: Lab(tmp_path_factory.mktemp("lab"))


@pytest.fixture
def lab(prefect_server: None, tmp_path: Path) -> Lab:
    """Return a test environment whose processes share the session's Prefect server."""
    return Lab(tmp_path)
