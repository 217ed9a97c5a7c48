"""Backups of a lab's volumes while runs write them; Docker and PostgreSQL are stand-ins."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.deployments.test_lab_databases import STAND_IN

DOCKER = Path(__file__).parents[2] / "deployments" / "docker"
GAME = """
scenario: binary_erasure_channel
trainer: vanilla_ppo
dataset: generated
interaction_protocol: adp
binary_erasure_channel: {num_datapoints: 60}
rl: {num_iterations: 30, frames_per_batch: 64, minibatch_size: 64, num_test_iterations: 1}
settings: {iterations_per_task: 1, tracking: false, progress: none}
"""


class Lab:
    """The volumes of a lab's server, and ``lab.sh`` for them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.work = folder, folder / "work"
        for name in ("runs", ".ratchet", "mlartifacts"):
            (self.work / name).mkdir(parents=True)
        tools = folder / "tools"
        tools.mkdir()
        dump = "#!/bin/sh\necho dump\n"
        for name, script in (("docker", STAND_IN), ("pg_dump", dump)):
            (tools / name).write_text(script)
            (tools / name).chmod(0o755)
        path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {**os.environ, "PATH": path, "WORK": str(self.work)}

    def back_up(self, name: str) -> Path:
        command = [str(DOCKER / "lab.sh"), "backup", str(self.folder / name)]
        done = subprocess.run(command, env=self.environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return self.folder / name


@contextmanager
def repeating(write: Callable[[int], None]) -> Iterator[None]:
    """Call a function with 0, 1, … in a thread, from before the block until its end."""
    started, stop = threading.Event(), threading.Event()

    def work() -> None:
        count = 0
        while not stop.is_set():
            write(count)
            count += 1
            if count == 10:
                started.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert started.wait(240)
        yield
    finally:
        stop.set()
        thread.join()


def test_a_backup_is_complete_while_journals_and_databases_grow(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    journal = lab.work / "runs" / "metrics.jsonl"
    journal.write_bytes(b'{"step": -1, "text": "%s"}\n' % (b"x" * 1000) * 5000)
    database = lab.work / ".ratchet" / "service.db"
    with closing(sqlite3.connect(database)) as opened:
        opened.execute("pragma journal_mode=wal")
        opened.execute("create table pairs (a int, b int)")
        opened.commit()

    def write(count: int) -> None:
        with journal.open("a") as file:
            file.write(json.dumps({"step": count}) + "\n")
        (journal.parent / f"{count}.tmp").touch()
        (journal.parent / f"{count - 1}.tmp").unlink(missing_ok=True)
        with closing(sqlite3.connect(database, timeout=300)) as opened, opened:
            opened.execute("insert into pairs values (?, ?)", (count, count))
            opened.execute("insert into pairs values (?, ?)", (count, -count))

    with repeating(write):
        backups = [lab.back_up(f"backup-{number}") for number in range(3)]

    for number, backup in enumerate(backups):
        for name in ("runs", "home"):
            with tarfile.open(backup / f"{name}.tar") as archive:
                archive.extractall(tmp_path / f"{name}-{number}", filter="data")
        lines = (tmp_path / f"runs-{number}" / "metrics.jsonl").read_text().split("\n")
        steps = [json.loads(line)["step"] for line in lines[5000:-1]]
        assert steps == list(range(len(steps)))
        assert len(steps) >= 10
        assert {path.name for path in (tmp_path / f"home-{number}").iterdir()} == {"service.db"}
        with closing(sqlite3.connect(tmp_path / f"home-{number}" / "service.db")) as opened:
            assert opened.execute("pragma integrity_check").fetchone() == ("ok",)
            count, total = opened.execute("select count(*), sum(b) from pairs").fetchone()
        assert count >= 20
        assert (count % 2, total) == (0, 0), "each transaction is there completely"
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.in_turn(2, of="deployments")
@pytest.mark.slow
def test_a_run_resumes_from_a_backup_that_was_made_while_it_ran(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    file = tmp_path / "game.yaml"
    file.write_text(GAME)
    ratchet = Path(sys.executable).with_name("ratchet")
    places = [f"settings.home={lab.work}/.ratchet", f"settings.runs={lab.work}/runs"]
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen([ratchet, "run", file, *places], cwd=tmp_path, stderr=log)

    def stages() -> list[Path]:
        return list((lab.work / ".ratchet" / "store").glob("stages/*/manifest.json"))

    while len(stages()) < 5:
        assert process.poll() is None, (tmp_path / "log").read_text()
    backup = lab.back_up("backup")
    process.kill()
    process.wait()
    subprocess.run(["find", lab.work, "-mindepth", "2", "-delete"], check=True)
    for name, volume in (("runs", "runs"), ("home", ".ratchet")):
        with tarfile.open(backup / f"{name}.tar") as archive:
            archive.extractall(lab.work / volume, filter="data")
    stored = len(stages())
    assert stored >= 5
    again = subprocess.run(
        [ratchet, "run", file, *places], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert f"Stages   {33 - stored} computed, {stored} cached" in again.stdout
