"""Learning curves and pairs in a comparison: positions, early ends, required seeds."""

from __future__ import annotations

import json

import numpy as np
import pytest
from made_runs import hyper_params, make_run, make_sweep, table

from ratchet.errors import DataError
from ratchet.reports.comparison.comparing import compare_runs
from ratchet.reports.comparison.files import to_data
from ratchet.reports.comparison.options import Options
from ratchet.reports.comparison.pairs import compare_pairs
from ratchet.reports.comparison.runs import ComparedRun, Group
from ratchet.reports.comparison.text import to_markdown
from ratchet.reports.comparison.training_costs import cumulative_cost
from ratchet.tracking.manifest import RunManifest
from ratchet.tracking.metrics import MetricPoint
from ratchet.tracking.run_folder import RunFolder

QUICK = Options(num_resamples=200)


def make(runs, name, curve, *, seed=0, **changes):
    """Create a run with a recorded curve and numbers of episodes."""
    params = hyper_params(seed=seed, rl__normalize_observations=False, **changes)
    arms = {"main": params.to_dict()}
    folder = RunFolder.create(
        runs, RunManifest(run_id=f"{name}-{seed}", name=name, status="completed", arms=arms)
    )
    folder.append_points(
        [
            MetricPoint("train", i, {"verifier.accuracy": y, "num_episodes": 9.0})
            for i, y in enumerate(curve)
        ]
    )
    folder.write_table(table("test", 5 + seed % 3))
    return folder


def rising(length, slope):
    return [min(1.0, 0.5 + slope * i) for i in range(length)]


def run_with(points, **rl):
    made = [MetricPoint(stage, iteration, values) for stage, iteration, values in points]
    return ComparedRun("r", 0, {}, {"rl": rl}, points=made)


def spent(run, axis):
    return cumulative_cost(run, axis).at(run.points)


def test_frames_are_recorded_or_taken_from_the_parameters():
    counted = run_with([("train", i, {"collected_frames": 50.0 * (i + 1)}) for i in range(3)])
    assert spent(counted, "frames") == [50, 100, 150]
    played = run_with([("train", i, {"num_episodes": 3.0}) for i in range(3)], frames_per_batch=100)
    assert spent(played, "frames") == [100, 200, 300]
    unknown = run_with(
        [("train", 0, {"num_episodes": 3.0})], frames_per_batch=1, rollouts_per_iteration=7
    )
    assert cumulative_cost(unknown, "frames") is None
    assert cumulative_cost(played, "tokens") is None


def test_tokens_are_those_spent_before_a_value_is_measured():
    usage = {"calls": 4.0, "prompt_tokens": 10.0, "completion_tokens": 5.0}
    points = [
        (stage, i, values)
        for i in range(2)
        for stage, values in (
            ("sample_rollouts", usage),
            ("test_during_training", {"test_accuracy": 0.5, "calls": 99.0}),
            ("await_fine_tune_jobs", {"training_tokens": 100.0}),
        )
    ]
    run = run_with(points)
    assert spent(run, "tokens") == [15, 15, 115, 130, 130, 230]
    assert spent(run, "sampled_tokens") == [5, 5, 5, 10, 10, 10]
    assert spent(run, "calls") == [4, 4, 4, 8, 8, 8]
    lengths = {"prompt_length/mean": 5.0, "response_length/mean": 2.5}
    local = run_with([("train", i, {"rollout/num_trajectories": 4.0, **lengths}) for i in (0, 1)])
    assert spent(local, "tokens") == [30, 60]
    assert spent(local, "sampled_tokens") == [10, 20]


def test_curves_are_drawn_over_frames_and_also_over_iterations_if_different(tmp_path):
    slow = [make(tmp_path, "slow", rising(10, 0.02), seed=s) for s in (0, 1)]
    fast = [
        make(tmp_path, "fast", rising(10, 0.02), seed=s, rl__frames_per_batch=100) for s in (0, 1)
    ]
    same = compare_runs(slow, options=QUICK).learning
    assert [each.axis for each in same] == ["frames"]
    both = compare_runs([*slow, *fast], options=QUICK).learning
    assert [each.axis for each in both] == ["frames", "iterations"]
    over_frames, over_iterations = both
    # equal curves by iterations, but one needs a tenth of the frames
    slow_row, fast_row = over_iterations.rows
    assert slow_row.area.value == pytest.approx(fast_row.area.value)
    # one starts at the frames where the other ends: no common range and no area
    assert (over_frames.start, over_frames.rows[0].area) == (None, None)
    asked = compare_runs([*slow, *fast], axis="iterations", options=QUICK).learning
    assert [each.axis for each in asked] == ["iterations"]
    with pytest.raises(DataError, match=r"have not recorded tokens.*expected one of frames, iter"):
        compare_runs(slow, axis="tokens", options=QUICK)


def test_efficiency_includes_runs_that_end_below_the_threshold(tmp_path):
    good = [make(tmp_path, "good", rising(21, 0.02), seed=s, rl__lr=0.1) for s in range(3)]
    mixed = [make(tmp_path, "mixed", rising(21, 0.01 * s), seed=s, rl__lr=0.2) for s in range(3)]
    (found,) = compare_runs([*good, *mixed], reach=[0.7], options=QUICK).learning
    best, worst = found.rows
    assert [each.num_reached for row in found.rows for each in row.reaching] == [3, 2]
    assert best.reaching[0].median.value == 11_000
    assert worst.reaching[0].positions == [21_000, 21_000, 11_000]
    assert worst.reaching[0].reached == [False, True, True]
    assert worst.reaching[0].median.value == 21_000
    assert best.area.value == pytest.approx(0.7)
    assert worst.area.value == pytest.approx(0.6)
    (default,) = compare_runs([*good, *mixed], options=QUICK).learning
    assert default.thresholds == [pytest.approx(0.7)]  # the final value of the weaker group


def test_a_curve_ends_with_its_shortest_run_and_gives_a_note(tmp_path):
    runs = [make(tmp_path, "a", rising(20 - 8 * s, 0.02), seed=s) for s in (0, 1)]
    comparison = compare_runs(runs, options=QUICK)
    (found,) = comparison.learning
    assert max(found.rows[0].band.positions) == found.end == 12_000
    assert found.rows[0].cut_off == 1
    assert "1 of 2 runs continue after the first has ended (frames: 12,000)" in to_markdown(
        comparison
    )


def test_missing_curves_are_reported_with_the_nearest_name(tmp_path):
    runs = make_sweep(tmp_path)
    with pytest.raises(DataError, match=r"Did you mean 'train/verifier.accuracy'"):
        compare_runs(runs, curves=["train/verifier.acuracy"], options=QUICK)
    with pytest.raises(DataError, match="expected STAGE/NAME"):  # one value is not a curve
        compare_runs(runs, curves=["test/accuracy"], options=QUICK)
    (found,) = compare_runs(runs, curves=["train/verifier.accuracy"], options=QUICK).learning
    assert found.axis == "iterations"


def test_learning_curves_and_pairs_are_in_the_data_and_the_text(tmp_path):
    comparison = compare_runs(make_sweep(tmp_path), options=QUICK)
    data = json.loads(json.dumps(to_data(comparison), allow_nan=False))
    (learning,) = data["learning"]
    assert [group["label"] for group in learning["groups"]] == ["adp", "nip"]
    assert len(learning["groups"][0]["curve"]["values"]) == 6
    profile = data["metrics"][0]["groups"][0]["profile"]
    assert profile["values"][0] == 1
    assert profile["values"][-1] == 0
    (pair,) = data["metrics"][0]["pairs"]
    assert pair["paired"] is True
    assert pair["difference"]["value"] == pytest.approx(-0.2667, abs=1e-3)
    text = to_markdown(comparison)
    assert "## Learning: Verifier · accuracy (train) over iterations, in percent" in text
    assert "| adp − nip | −26.7 |" in text
    assert "censored" in text


def pair_of(comparison):
    return comparison.of_kind("accuracy")[0].pairs[0]


def test_runs_are_paired_by_seed_where_seeds_and_data_are_shared(tmp_path):
    shared = make_sweep(tmp_path / "shared")
    assert pair_of(compare_runs(shared, options=QUICK)).paired
    assert pair_of(compare_runs(shared[::-1], options=QUICK)).paired
    fewer = pair_of(compare_runs(shared[:-1], options=QUICK))
    assert (fewer.paired, fewer.pairing) == (False, "not the same seeds")
    shared[0].update(dataset_hashes={"main": {"train": "d" * 64, "test": "b" * 64}})
    other = pair_of(compare_runs(shared, options=QUICK))
    assert (other.paired, other.pairing) == (False, "the same seeds with other data")


def test_runs_are_paired_by_seed_regardless_of_their_order(tmp_path):
    shared = make_sweep(tmp_path, rights=((2, 5, 8), (3, 6, 9)))
    straight = pair_of(compare_runs(shared, options=QUICK))
    turned = pair_of(compare_runs([*shared[:3], *shared[:2:-1]], options=QUICK))
    assert straight.power.spread == turned.power.spread == pytest.approx(0, abs=1e-9)
    assert straight.chance == turned.chance == 2 / 2**3


def test_curves_next_to_fixed_partners_are_named(tmp_path):
    phases = [
        {"name": "one", "num_iterations": 3, "partners": {"prover": "hand_made"}},
        {"name": "both", "num_iterations": 5},
    ]
    runs = [make(tmp_path, "a", rising(8, 0.02), seed=s, phases=phases) for s in (0, 1)]
    text = to_markdown(compare_runs(runs, options=QUICK))
    note = "all runs: up to 3,000 frames agents learn with fixed partners (prover: hand_made)"
    assert note in text


@pytest.mark.parametrize("same_data", [True, False])
def test_the_rate_of_false_differences_is_at_most_nominal(same_data):
    rng = np.random.default_rng(5)
    told = 0
    for trial in range(200):
        groups = [
            Group(
                name,
                {},
                [[ComparedRun("", s, {}, {}, data_hashes={"train": data}) for s in range(6)]],
            )
            for name, data in (("a", "same"), ("b", "same" if same_data else "other"))
        ]
        scores = [[rng.normal(size=6).tolist()] for _ in groups]
        (pair,) = compare_pairs(groups, scores, Options(num_resamples=200, seed=trial))
        assert pair.paired == same_data
        told += pair.is_told_apart
    assert told / 200 <= 0.08


def test_too_few_seeds_are_reported_without_claims_about_the_observed_difference(tmp_path):
    close = make_sweep(tmp_path, rights=((5, 7, 6), (8, 6, 7)))
    comparison = compare_runs(close, options=QUICK)
    pair = pair_of(comparison)
    assert not pair.is_told_apart
    text = to_markdown(comparison)
    assert (
        "Not distinguished at 5 %: adp and nip (accuracy on the test set); no p-value of 3 seeds"
        " each is below 0.250, whatever the difference." in text
    )
    assert "1 of 1 tests cannot reach 5 %" in text
    assert f"| {pair.chance:.3f} (≥ 0.250) | yes | none |" in text


def test_the_detectable_difference_is_reported_for_pairs_that_are_not_distinguished(tmp_path):
    rights = ((8, 3, 7, 7, 8, 3, 5, 3), (3, 7, 4, 0, 6, 8, 1, 2))
    comparison = compare_runs(make_sweep(tmp_path, rights=rights), options=QUICK)
    pair = pair_of(comparison)
    assert not pair.is_told_apart
    size = f"{100 * pair.power.detectable:.1f}"
    assert f"8 seeds each detect a true difference of {size} points in 80 %" in to_markdown(
        comparison
    )
    equal = [
        make_run(tmp_path / "e", f"{p}-{s}", 5, interaction_protocol=p, seed=s)
        for p in ("adp", "nip")
        for s in range(6)
    ]
    assert "the 6 seeds each have no spread" in to_markdown(compare_runs(equal, options=QUICK))
