"""What no formula says in the pages on graph isomorphism agrees with their data."""

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
PROVERS = ("", "prover_2", "prover_4")


def text_of(page: str) -> str:
    return pages.text_of(f"docs/results/{page}.md")


def test_intervals_agree_with_the_tables():
    for text in (text_of(HELP), text_of("index"), pages.text_of("README.md")):
        assert all(f"--> {pages.table(HELP)[arm][2]}" in text for arm in ("main", "alone"))
    for page, pair in ((UNBALANCED, "alone − main"), (IMITATED, "imitated − main")):
        row = pages.differences(page)[pair]
        high, low = row["95 % interval"].replace("−", "").strip("[]").split(", ")
        assert f"({low} to {high}" in text_of(page).partition("<!-- begin")[0]
    assert f"({low} to {high}" in text_of(HELP)


def test_runs_after_the_study_compare_with_it():
    study, imitated, others = (pages.accuracies(page) for page in (HELP, IMITATED, UNBALANCED))
    assert imitated["main"] == study["main"]
    assert all(imitated["main"][seed] > each for seed, each in imitated["imitated"].items())
    gain = {arm: mean([found[k] - study[arm][k] for k in found]) for arm, found in others.items()}
    assert abs(gain["main"]) < 0.1
    assert f"gains {gain['alone']:.1f} points" in text_of(UNBALANCED)


def test_frames_and_games_in_sentences():
    arms = pages.parameters(HELP)
    frames = {arm: planned_frames(params) for arm, params in arms.items()}
    variants = pages.parameters(VARIANTS)
    scratch, main = (planned_frames(variants[arm]) for arm in ("from_scratch", "main"))
    more = f"{sum(scratch.values()) / sum(main.values()):.1f} times"
    totals = {arm: f"{sum(each.values()):,}" for arm, each in frames.items()}
    shared = f"hand_made, random and alone_scratch {totals['random']}, and alone {totals['alone']}"
    assert f"main and honest use {totals['main']} frames in all, {shared}" in text_of(HELP)
    assert f"80 × 3,072 = {frames['main']['imitate-prover']:,}" in text_of(HELP)
    before = sum(frames["main"].values()) - frames["main"]["train"]
    scripted = before + arms["main"].phases[0].num_iterations * arms["main"].rl.frames_per_batch
    assert f"Up to {scripted:,} frames the curves" in text_of(HELP)
    assert totals["random"] == totals["hand_made"] == totals["alone_scratch"]
    assert f"{more} the frames" in text_of(HELP)
    assert f"{scratch['train']:,} frames of PPO" in text_of(VARIANTS)
    assert f"{more} main's frames" in text_of(VARIANTS)


def test_games_and_p_in_sentences():
    main, adp, merlin_arthur = (labels(PROTOCOLS, arm) for arm in ("main", "adp", "merlin_arthur"))
    assert 2 * adp == 2 * merlin_arthur == main
    arms = ("main", "two_exchanges", "three_exchanges")
    main, two, three = (labels(VARIANTS, arm) for arm in arms)
    assert f"play {two / main:.2f} and {three / main:.2f} of main's games" in text_of(VARIANTS)
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
