"""Statements without formulas in the pages on graph isomorphism agree with their data."""

from __future__ import annotations

import pytest

from examples.exact_bounds import exact_accuracies
from ratchet.experiment_files.loading import load_experiment
from ratchet.reports.comparison.published import read_published
from ratchet.statistics import mean
from tests import test_results_pages as pages
from tests.planned_frames import planned_frames
from tests.test_results_pages import EXPERIMENTS, HELP, PROTOCOLS, RESULTS, VARIANTS

UNBALANCED, IMITATED = f"exploratory/{HELP}", f"exploratory/{HELP}_imitated"


def text_of(page: str) -> str:
    return pages.text_of(f"docs/results/{page}.md")


def test_runs_after_the_study_compare_with_it():
    study, imitated, others = (pages.accuracies(page) for page in (HELP, IMITATED, UNBALANCED))
    assert imitated["main"] == study["main"]
    assert all(imitated["main"][seed] > each for seed, each in imitated["imitated"].items())
    gain = {arm: mean([found[k] - study[arm][k] for k in found]) for arm, found in others.items()}
    assert abs(gain["main"]) < 0.1
    assert f"gains {gain['alone']:.1f} points" in text_of(UNBALANCED)


def test_frames_in_sentences():
    params = pages.parameters(HELP)["main"]
    frames = planned_frames(params)
    assert f"of which {frames['imitate-prover']:,} are imitation" in text_of(HELP)
    before = sum(frames.values()) - frames["train"]
    scripted = before + params.phases[0].num_iterations * params.rl.frames_per_batch
    assert f"Up to {scripted:,} frames the curves" in text_of(HELP)


def test_games_and_p_in_sentences():
    main, adp, merlin_arthur = (labels(PROTOCOLS, arm) for arm in ("main", "adp", "merlin_arthur"))
    assert 2 * adp == 2 * merlin_arthur == main
    rows = pages.differences(PROTOCOLS)
    assert all(float(rows[f"{a} − main"]["corrected p"]) > 0.05 for a in ("nip", "debate", "mnip"))


def labels(page: str, arm: str) -> float:
    """Return the labelled games of an arm's runs, which are the same for each seed."""
    runs = read_published(RESULTS / f"{page}.json").runs
    (count,) = {run.used["train"]["labels"] for run in runs if run.arm == arm}
    return count


@pytest.mark.in_turn(1)
@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_reference_values_of_the_variants_by_depth(layers, tmp_path):
    text = (EXPERIMENTS / f"{VARIANTS}.yaml").read_text()
    file = tmp_path / f"{VARIANTS}.yaml"
    file.write_text(text.replace("num_gnn_layers: 2\n", f"num_gnn_layers: {layers}\n", 1))
    assert load_experiment(file).hyper_params.agents["verifier"].num_gnn_layers == layers
    exact = exact_accuracies(str(file))
    values = f"{100 * exact.accept_if_alike:.1f} % | {100 * exact.random_question:.1f} %"
    assert f"| {layers} | {values} |" in text_of(VARIANTS)
