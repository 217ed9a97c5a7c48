"""Complete experiments on machines that share only a bucket."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows import resume_experiment, run_experiment, verify_run
from flows.cli.main import app
from flows.runs.export import export_run
from flows.runs.import_run import import_run
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.store import StageStore
from ratchet.tracking.run_folder import find_run
from tests.s3_server import BUCKET, S3Server

pytestmark = pytest.mark.slow
pytest.importorskip("moto")
pytest.importorskip("s3fs")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server().with_a_bucket() as server:
        yield server


class Machine:
    """Separate folders, and a store in the bucket."""

    def __init__(self, lab: Any, name: str, store: str) -> None:
        self.folder = lab.folder / name
        self.environment = {"XDG_CACHE_HOME": str(self.folder / "cache")}
        self.store = f"s3://{BUCKET}/{store}"
        self.settings = lab.settings(
            home=str(self.folder / "home"),
            runs=str(self.folder / "runs"),
            store=self.store,
            lease_seconds=3.0,
        )


def test_a_killed_run_resumes_on_a_different_machine_without_repeated_work(
    server: S3Server, lab: Any
) -> None:
    one, two = Machine(lab, "one", "killed"), Machine(lab, "two", "killed")
    lab.environment = {"TINY_SECONDS": "0.05", **one.environment}
    lab.kill("stage=train;iteration=6;within=0.1;seed=3", None, one.settings)
    before = lab.done()
    server.forget()
    lab.environment |= two.environment
    result = lab.run(None, {**two.settings, "lease_seconds": 60.0})
    assert result["cached"] > 0
    counts = Counter(lab.done())
    assert {piece for piece, count in counts.items() if count > 1} <= {
        piece for piece in before if piece.startswith("train")
    }
    assert all(counts[f"train {i}"] == 1 for i in range(3)), "a finished stage was recomputed"
    asked = server.asked(f"/{BUCKET}/killed/")  # before the test reads the store
    store = StageStore(two.store, copies=lab.folder / "three")
    made = [
        manifest
        for manifest in store.iterate()
        if server.asked(f"PUT /{BUCKET}/killed/stages/{manifest.key}")
    ]
    assert len(made) == result["computed"]
    for manifest in made:
        waits = 20 if manifest.iteration == 6 else 0  # checks whether the killed process is alive
        of_stage = [each for each in asked if f"{manifest.key}/" in each]
        by_progress = 1  # counts the remaining iterations once, after some seconds
        assert len(of_stage) <= len(manifest.files) + 3 + by_progress + waits, of_stage
    lab.environment |= one.environment
    again = lab.run(None, one.settings)
    assert (again["computed"], again["cached"]) == (0, 9)
    assert again["states"] == result["states"]
    assert Counter(lab.done()) == counts


def test_stages_that_workers_store_in_a_bucket_are_found_by_the_run(
    server: S3Server, lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Machine(lab, "one", "workers")
    monkeypatch.setenv("XDG_CACHE_HOME", one.environment["XDG_CACHE_HOME"])
    monkeypatch.setenv("TINY_LOG", str(lab.log))
    chosen = {**one.settings, "runner": "processes", "max_parallel": 2}
    settings = ExperimentSettings.from_dict(chosen)
    params = lab.hyper_params(rl__num_iterations=3, pretrain_agents=False)
    result = run_experiment(params, settings, arms={"other": {"seed": 5}}, name="tiny")
    assert Counter(lab.done()) == {f"train {i}": 2 for i in range(3)} | {"test test": 2}
    assert set(result.states) == {"main", "other"}


def test_runs_in_a_bucket_are_exported_imported_verified_and_collected(
    server: S3Server, lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Machine(lab, "one", "kept"), Machine(lab, "two", "moved")
    monkeypatch.setenv("XDG_CACHE_HOME", one.environment["XDG_CACHE_HOME"])
    unrenewed = {**one.settings, "lease_seconds": 60.0}  # renewals depend on the computer's speed
    here = ExperimentSettings.from_dict(unrenewed)
    params = lab.hyper_params(rl__num_iterations=3)
    server.forget()
    kept = run_experiment(params, here, name="tiny")
    asked = server.asked(f"/{BUCKET}/kept/stages/")
    for manifest in StageStore(one.store).iterate():
        of_stage = [each for each in asked if f"{manifest.key}/" in each]
        assert len(of_stage) <= len(manifest.files) + 3, (manifest.stage, of_stage)
    gone = run_experiment({**params, "seed": 9}, here, name="tiny")
    find_run(here.runs, gone.run_id).delete()
    before = len(list(StageStore(one.store).iterate()))

    where = ["--home", here.home, "--store", one.store]
    told = CliRunner().invoke(app, ["gc", *where, "--older-than", "0s"])
    assert told.exit_code == 0, told.output
    assert len(list(StageStore(one.store).iterate())) == before, "listing must not delete stages"
    told = CliRunner().invoke(app, ["gc", *where, "--older-than", "0s", "--delete"])
    assert told.exit_code == 0, told.output
    assert 0 < len(list(StageStore(one.store).iterate())) < before
    assert verify_run(kept.run_id, here).is_sound
    assert resume_experiment(kept.run_id, here).computed == 0

    packed: Path = lab.folder / "run.zip"
    exported = export_run(kept.run_id, packed, here.runs)
    monkeypatch.setenv("XDG_CACHE_HOME", two.environment["XDG_CACHE_HOME"])
    there = ExperimentSettings.from_dict({**two.settings, "base_dir": None})
    assert import_run(packed, there).new == exported.num_stages
    moved = ExperimentSettings.from_dict(find_run(there.runs, kept.run_id).manifest.settings)
    found = verify_run(kept.run_id, moved)
    assert found.is_sound
    assert found.remade is not None

    told = CliRunner().invoke(
        app, ["doctor", *where, "--runs-dir", here.runs], env={"COLUMNS": "300"}
    )
    assert "claims work across machines" in told.output, told.output
