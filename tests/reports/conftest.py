"""A finished run with synthetic numbers."""

import math
import random
import sys
from pathlib import Path

import pytest

from ratchet.parameters import HyperParameters
from ratchet.tracking import (
    MetricPoint,
    ResultTable,
    RunFolder,
    RunManifest,
    StageRecord,
    capture_versions,
)
from ratchet.tracking.environment import CodeState

sys.path.insert(0, str(Path(__file__).parent))  # for made_runs


def result_columns(rng, chances, *, rounds=True, hard=False):
    """Return results on 600 datapoints, some repeated; ``chances`` is the accuracy by WL score."""
    columns = {"datapoint_id": [], "y": [], "decision": [], "correct": [], "wl_score": []}
    scores = [4, 5, 6] if hard else [0, 0, 0, 0, 1, 2, 2, 3, 5, 6]
    for row in range(720):
        ident = row % 600
        score = scores[ident % len(scores)]
        y = 1 if score == 0 else 0
        correct = int(rng.random() < chances(score))
        decision = y if correct else (2 if rng.random() < 0.1 else 1 - y)
        for name, value in zip(columns, (ident, y, decision, correct, score), strict=True):
            columns[name].append(value)
    if rounds:
        columns["rounds"] = [2 + row % 5 for row in range(720)]
        columns["reward.prover"] = [float(c) for c in columns["correct"]]
        columns["reward.verifier"] = [float(2 * c - 1) for c in columns["correct"]]
    return columns


def training_points(rng, arm, limit, num_iterations):
    """Return synthetic learning curves."""
    points = []
    for i in range(num_iterations):
        rise = 1 - math.exp(-i / 60)
        noise = rng.gauss
        values = {
            "accuracy": min(1.0, 0.5 + (limit - 0.5) * rise + noise(0, 0.03)),
            "entropy": 2.2 - rise + noise(0, 0.05),
            "approx_kl": abs(noise(0.01, 0.004)),
            "learning_rate": 0.003,
        }
        for agent in ("prover", "verifier") if arm == "main" else ("verifier",):
            values[f"{agent}/mean_reward"] = -0.2 + rise + noise(0, 0.06)
            values[f"{agent}/loss_critic"] = 0.6 - 0.4 * rise + noise(0, 0.03)
            values[f"{agent}/loss_objective"] = noise(0, 0.02)
        points.append(MetricPoint("train", i, values, arm))
    return points


def _hyper_params(**changes):
    given = {"scenario": "graph_isomorphism", "trainer": "vanilla_ppo", "dataset": "eru10000"}
    sections = {"rl": {"num_iterations": 240, "frames_per_batch": 4096}, "pretrain_agents": True}
    return HyperParameters(**given, **sections).replace(changes).to_dict()


@pytest.fixture
def run(tmp_path):
    rng = random.Random(0)
    alone = {"trainer": "solo_agent", "interaction_protocol": "solo_verifier", "rl.lr": 0.001}
    arms = {"main": _hyper_params(), "alone": _hyper_params(**alone)}
    manifest = RunManifest(
        run_id="nip-1234abcd",
        name="Nip against a verifier alone",
        arms=arms,
        versions=capture_versions(),
        code=CodeState(commit="c0ffee" * 6 + "abcd", branch="main", dirty=True),
        seeds={"main": 6198, "alone": 6198},
        dataset_hashes={arm: {"train": "a1" * 32, "test": "b2" * 32} for arm in arms},
        prefect_flow_run_ids=["6d5c6d1e-1111-4444-8888-123456789abc"],
        prefect_ui_url="http://127.0.0.1:4200",
        command=["ratchet", "run", "experiments/nip.yaml"],
        tracking={"uri": "http://localhost:5000", "url": None, "runs": {"main": "f" * 32}},
    )
    folder = RunFolder.create(tmp_path / "runs", manifest)
    folder.append_points(training_points(rng, "main", 0.88, 240))
    folder.append_points(training_points(rng, "alone", 0.68, 240))
    for epoch in range(60):
        for agent in ("prover", "verifier"):
            fall = math.exp(-epoch / 20)
            values = {
                "train_loss": 0.69 * fall + rng.gauss(0, 0.01),
                "test_loss": 0.3 + 0.39 * fall,
                "train_accuracy": 0.95 - 0.45 * fall,
                "test_accuracy": 0.68 - 0.18 * fall,
            }
            folder.append_metrics(f"pretrain-{agent}", epoch, values)
    folder.append_metrics("test", 240, {"accuracy": 0.87, "mean_reward/prover": 0.8})
    folder.write_table(
        ResultTable("test", result_columns(rng, lambda s: 0.95 if s < 3 else 0.9 - 0.06 * s))
    )
    folder.write_table(ResultTable("test-large", result_columns(rng, lambda s: 0.66, hard=True)))
    folder.write_table(
        ResultTable("pretrain-verifier", result_columns(rng, lambda s: 0.66, rounds=False))
    )
    folder.write_table(
        ResultTable("test", result_columns(rng, lambda s: 0.9 if 0 < s < 3 else 0.6), "alone")
    )
    for arm in arms:
        stages = [("initial_state", 0, 0, 0.3), ("pretrain-verifier", 0, 0, 84.0)]
        stages += [("train", k, k + 10, 6.2) for k in range(0, 240, 10)]
        stages += [("test", 240, 240, 2.0)]
        folder.record_stages(
            [
                StageRecord(
                    arm=arm,
                    stage=stage,
                    start_iteration=start,
                    iteration=stop,
                    key="0123456789abcdef" * 4,
                    hit=stop < 100,
                    reason="found" if stop < 100 else "not in the store",
                    seconds=seconds,
                )
                for stage, start, stop, seconds in stages
            ]
        )
    folder.log_event("tracking_failed", "MLflow did not answer; <b>later</b>")
    folder.set_status("completed")
    return folder
