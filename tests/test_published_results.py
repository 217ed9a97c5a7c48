"""Repeating a stage or a run of each results page reproduces what was published."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ratchet.experiment_files.loading import load_experiment
from ratchet.experiment_files.study_file import load_study
from ratchet.reports.comparison.published import (
    check_published,
    different_versions,
    read_published,
    unrecorded_versions,
)
from ratchet.scenarios.registry import build_scenario
from ratchet.scenarios.validation_split import split_datasets
from ratchet.seeding import derive_seed, seeded_globals
from ratchet.tracking.environment import made_with
from ratchet.tracking.run_folder import RunFolder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
EXPERIMENTS = ROOT / "experiments"
CHOSEN = {
    "binary_erasure_channel_proof": ["seed=107", "arms=null"],
    "code_validation_credit": ["seed=101", "arms=null"],
    "debaters": ["seed=101", "arms=null"],
    "graph_isomorphism_help": ["seed=203", "arms=null"],
    "graph_isomorphism_help_variants": ["seed=202", "arms=null"],
    "graph_isomorphism_protocols": ["seed=402", "arms=null"],
    "known_answers": ["seed=201", "arms=null"],
    "self_proving_gcd": ["seed=203", "arms=null"],
    "self_proving_sum_check": ["seed=203", "arms=null"],
    "text_protocols": ["seed=101", "arms=null"],
    "zero_knowledge": ["seed=103", "arms=null"],
}
QUICK = ["binary_erasure_channel_proof", "zero_knowledge"]
"""Pages of which a run takes some seconds."""
OTHERS = [page for page in CHOSEN if page not in QUICK]
IN_TURN = "in_turn"
"""The slow tests also repeat one of the others by the day, except those without an accuracy."""
PAGES = sorted(path.stem for path in RESULTS.glob("*.json"))


def experiment(page):
    return load_study(EXPERIMENTS / "studies" / f"{page}.yaml").experiment.resolve()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_contains_its_commands(page):
    published = read_published(RESULTS / f"{page}.json")
    text = (RESULTS / f"{page}.md").read_text() + "\n".join(published.tables)
    assert all(command in text for command in published.commands)
    file = experiment(page)
    assert published.commands[0].startswith(f"ratchet sweep experiments/{file.name} ")
    assert {run.experiment for run in published.runs} == {file.stem}


def test_each_page_is_checked():
    assert sorted(CHOSEN) == PAGES


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("page", PAGES)
def test_a_pages_data_are_built_again(page):
    run = read_published(RESULTS / f"{page}.json").runs[0]
    assert run.arm == "main"
    params = load_experiment(experiment(page), [f"seed={run.seed}"]).hyper_params
    with seeded_globals(derive_seed(run.seed, "build_scenario")):
        built = split_datasets(build_scenario(params.scenario, EXPERIMENTS), params, None)
    assert {name: data.hash for name, data in built.items()} == run.data


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    [*QUICK, IN_TURN, *(pytest.param(page, marks=pytest.mark.exhaustive) for page in OTHERS)],
)
def test_a_repeated_run_reproduces_the_published_results(page, tmp_path):
    if in_turn := page == IN_TURN:
        without_accuracy = ("known_answers", "self_proving")
        pages = [each for each in OTHERS if not each.startswith(without_accuracy)]
        page = pages[datetime.now(UTC).toordinal() % len(pages)]
    published = read_published(RESULTS / f"{page}.json")
    places = [f"settings.{name}={tmp_path / name}" for name in ("home", "runs")]
    ratchet = Path(sys.executable).with_name("ratchet")
    made = subprocess.run(
        [ratchet, "run", experiment(page), *CHOSEN[page], *places],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-2000:]
    (manifest,) = (tmp_path / "runs").glob("*/manifest.json")
    folder = RunFolder(manifest.parent)
    elsewhere = different_versions(published, made_with())
    if in_turn:  # processors of one family round differently, and files may lack the model
        elsewhere += unrecorded_versions(published, made_with())
    runs = check_published(folder, published)
    if not elsewhere:
        assert [v for run in runs for v in run.values if not v.is_same] == []
    for checked in [test for run in runs for test in run.tests]:
        if not elsewhere:
            assert checked.is_same, checked
            continue
        if checked.published.accuracy is None:
            pytest.skip(f"other package versions, and no accuracy to compare: {elsewhere}")
        group = [r for r in published.runs if r.arm == checked.arm]  # versions round differently
        seeds = [r.tests[checked.test].accuracy for r in group if checked.test in r.tests]
        assert min(seeds) - 0.02 <= checked.here.accuracy <= max(seeds) + 0.02, checked
