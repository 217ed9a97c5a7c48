"""The examples about runs: resuming, forks, sweeps and comparisons, with one server."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

from flows.process.environment import prepare_environment
from ratchet.tracking.run_folder import RunFolder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def overrides(prefect_server, tmp_path, monkeypatch):
    """Return overrides that store runs and stages in the test's folder, also in subprocesses."""
    from prefect.settings import PREFECT_API_URL

    monkeypatch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value()))
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))
    prepare_environment(tmp_path / "home")
    return [
        f"settings.home={tmp_path / 'home'}",
        f"settings.runs={tmp_path / 'runs'}",
        "settings.tracking=false",
        "settings.progress=none",
        "rl.frames_per_batch=256",
        "rl.num_test_iterations=4",
    ]


@pytest.mark.in_turn(4, of="kills")
def test_a_killed_run_resumes(overrides):
    result = example("resume").main(*overrides)
    trained = [each for each in RunFolder(result.folder).manifest.stages if each.stage == "train"]
    assert trained[-1].iteration == 30
    assert result.cached >= 3  # data, initial state, and the two training stages before the kill
    assert result.computed >= 1  # killed, not finished
    assert RunFolder(result.folder).manifest.status == "completed"


def test_a_run_without_prefect_is_found_by_the_next(overrides):
    first, second = (example("without_prefect").main(*overrides) for _ in range(2))
    assert (first.cached, second.computed, second.cached) == (0, 0, first.computed)


def test_a_fork_shares_earlier_stages(overrides):
    parent, fork = example("fork").main(*overrides)

    def trained(result):
        stages = RunFolder(result.folder).manifest.stages
        return {each.iteration: each.key for each in stages if each.stage == "train"}

    first, second = trained(parent), trained(fork)
    assert set(first) == set(second) == {5, 10, 15, 20}
    assert [k for k in first if first[k] == second[k]] == [5, 10]
    assert fork.computed == 3  # two training stages, and the test


def test_a_sweep_is_compared_with_seeds_as_repetitions(overrides, tmp_path):
    results = example("sweep").main(*overrides, "rl.num_iterations=4")
    assert len(results) == 6
    comparison = example("compare").main(runs=str(tmp_path / "runs"))
    assert [len(group.runs) for group in comparison.grouping.groups] == [3, 3]
    assert (tmp_path / "runs" / "alone_or_not" / "comparison.html").exists()


def test_comparing_a_missing_sweep_prints_the_command_to_run_first(tmp_path):
    with pytest.raises(SystemExit, match=r"examples/sweep\.py"):
        example("compare").main(runs=str(tmp_path))
