"""Fixtures of the store's tests: a small stage, and scripts in separate processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.plugins import load_class
from ratchet.store.claim import Claim
from ratchet.store.fingerprint import Fingerprint
from ratchet.store.keys import stage_key
from ratchet.store.manifest import Manifest
from ratchet.store.store import Damage, StageStore

REPOSITORY = Path(__file__).resolve().parents[2]


class StageForTest:
    """A stage of two files whose key depends on ``parameters``."""

    def __init__(self, **parameters: Any) -> None:
        self.description: dict[str, Any] = {
            "stage": "train",
            "iteration": 3,
            "parameters": {"rl": {"lr": 0.003, "gamma": 0.9}, **parameters},
            "inputs": {"base": "ab" * 32, "base_iteration": 0},
            "fingerprint": Fingerprint.from_modules({"trainers.one": "1" * 64}),
        }

    @property
    def key(self) -> str:
        arguments = {**self.description, "fingerprint": self.description["fingerprint"].digest}
        return stage_key(**arguments)

    def write(self, claim: Claim) -> Manifest:
        (claim.workdir / "weights").mkdir()
        (claim.workdir / "weights" / "agent.bin").write_bytes(bytes(range(256)) * 64)
        (claim.workdir / "state.json").write_text('{"iteration": 3}')
        metrics = [{"iteration": i, "values": {"loss": 1 / i}} for i in (1, 2, 3)]
        return claim.commit(**self.description, start_iteration=0, metrics=metrics, seconds=1.5)

    def make(self, store: StageStore) -> Manifest:
        with store.claim(self.key) as claim:
            return claim.existing or self.write(claim)


@pytest.fixture
def stage() -> StageForTest:
    return StageForTest()


@pytest.fixture
def new_stage() -> type[StageForTest]:
    return StageForTest


@pytest.fixture
def damages() -> list[Damage]:
    return []


@pytest.fixture
def store(tmp_path: Path, damages: list[Damage]) -> StageStore:
    return StageStore(tmp_path / "store", on_damage=damages.append)


@pytest.fixture
def script() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python source in a separate process, which is killed after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(source: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                "PYTHONPATH": f"{REPOSITORY}:{Path(__file__).parent}",
                "PATH": "/usr/bin:/bin",
                "OMP_NUM_THREADS": "1",
                **environment,
            },
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Callable[..., type]]:
    """Write a plug-in file and load its class, as experiments do."""

    def load(text: str, folder: str = "plugins", name: str = "mine") -> type:
        path = tmp_path / folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return load_class(f"{path}:Mine")

    before = set(sys.modules)
    yield load
    for name in set(sys.modules) - before:
        if name.startswith("ratchet_plugin_"):
            del sys.modules[name]
