"""A sweep's preregistration is recorded before its first member starts, and never changed."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from flows import sweep_flow
from flows.sweeps.members import read_sweep_file, resolve_sweep
from flows.sweeps.preregistration import preregister
from ratchet.errors import ParameterError
from ratchet.tracking.environment import capture_code_state
from ratchet.tracking.sweep_folder import SweepRecord, read_own_sweep, write_sweep

FILE = """
scenario: graph_isomorphism
trainer: vanilla_ppo
dataset: generated
arms:
  slow: {rl.lr: 0.1}
"""
SECTION = "preregistered: {seeds: 0..2, baselines: [main]}\n"


@pytest.fixture
def resolve(tmp_path):
    """Return a function that resolves a sweep of a file with a section."""
    file = tmp_path / "exp.yaml"
    folders = [f"settings.{name}={tmp_path / name}" for name in ("home", "runs")]

    def resolve(*assignments, section=SECTION):
        file.write_text(FILE + section)
        experiment, spec, settings = read_sweep_file(str(file), [*assignments, *folders])
        return resolve_sweep(
            experiment.hyper_params,
            spec,
            settings,
            experiment.arm_changes,
            name="exp",
            sweep_name="study",
            preregistered=experiment.preregistered,
        )

    return resolve


def start(resolved, number=0):
    """Create a member's run folder."""
    path = resolved.members[number].experiment.run_path
    path.mkdir(parents=True)
    (path / "manifest.json").write_text("{}")


def stored(resolved):
    runs, record = resolved.settings.runs, resolved.record(resolved.members)
    write_sweep(runs, preregister(record, resolved.preregistered, runs))
    return read_own_sweep(resolved.folder).preregistered


def test_run_ids_do_not_depend_on_it(resolve):
    given = [resolve("seed=0..2", section=section) for section in ("", SECTION)]
    ids = [[member.run_id for member in resolved.members] for resolved in given]
    assert ids[0] == ids[1]
    assert given[0].preregistered is None


def test_it_is_stored_before_the_first_member_starts(resolve, monkeypatch):
    resolved = resolve("seed=0..2")
    seen = []

    async def run_inline(member):
        seen.append(read_own_sweep(resolved.folder).preregistered)
        return {"error": "stopped here"}

    monkeypatch.setattr(sweep_flow, "_run_inline", run_inline)
    monkeypatch.setattr(sweep_flow, "sync_mlflow", lambda resolved: None)
    with pytest.raises(Exception, match="stopped here"):
        asyncio.run(sweep_flow.run_members(resolved, 1))
    found = seen[0]
    assert seen == [found] * 3
    assert found.content == resolved.preregistered
    assert found.content.baselines == ["main"]
    assert found.code == capture_code_state()
    assert abs((datetime.now(UTC) - found.registered).total_seconds()) < 60
    assert found.digest == found.content.digest(m.run_id for m in reversed(resolved.members))


def test_it_is_kept_with_a_warning_if_the_file_changes(resolve, caplog):
    resolved = resolve("seed=0..2")
    first = stored(resolved)
    assert not caplog.records
    assert stored(resolved) == first
    assert not caplog.records
    start(resolved)
    changed = resolve("seed=0..2", section=SECTION.replace("main", "slow"))
    with caplog.at_level(logging.WARNING):
        assert stored(changed) == first
    assert "is kept (digest " + first.digest in caplog.text
    assert stored(resolve("seed=0..2", section="")) == first
    assert stored(replace(resolved, preregistered=None)) == first


def test_it_is_not_stored_once_a_member_has_started(resolve, caplog):
    resolved = resolve("seed=0..2")
    start(resolved, 2)
    with caplog.at_level(logging.WARNING):
        assert stored(resolved) is None
    assert "1 of 3 members have started" in caplog.text


@pytest.mark.parametrize("seeds", ["0..1", "0..3", "2..3"])
def test_a_sweep_of_different_seeds_is_refused(resolve, seeds):
    with pytest.raises(ParameterError, match=r"preregistered.seeds: .* expected 0–2: all"):
        resolve(f"seed={seeds}")


def test_a_search_on_other_seeds_runs_without_it(resolve):
    assert stored(resolve("seed=3..4", "rl.lr=0.1,0.2")) is None


def test_the_seed_of_a_file_counts_if_it_does_not_vary(resolve):
    assert stored(resolve("rl.lr=0.1,0.2", "seed=7")) is None
    with pytest.raises(ParameterError, match="the sweep has the seeds 1, expected 0–2"):
        resolve("rl.lr=0.1,0.2", "seed=1")


def test_records_of_earlier_releases_load(tmp_path):
    folder = write_sweep(tmp_path, SweepRecord(sweep_id="s", name="s", members=[]))
    data = json.loads((folder / "sweep.json").read_text())
    del data["preregistered"]
    (folder / "sweep.json").write_text(json.dumps(data))
    assert read_own_sweep(folder).preregistered is None
    assert read_own_sweep(tmp_path) is None
