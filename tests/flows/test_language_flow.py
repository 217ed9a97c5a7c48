"""Language trainers give the same result after kills, other stage boundaries and forks."""

from __future__ import annotations

import pytest

from ratchet.rollouts.trajectory import load_trajectories
from trainers.language.state import LanguageState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CHOSEN = {
    "scenario": "language_task",
    "dataset": "reverse",
    "trainer": "grpo",
    "rl": {"num_iterations": 4},
    "language_task": {
        "num_train": 64,
        "num_test": 8,
        "reverse": {"length": 3, "num_symbols": 6},
        "evaluator": "partial",
    },
    "agents": {
        "_default": {
            "max_tokens": 5,
            "small_model": {"layers": 1, "d_model": 16, "heads": 2, "context_length": 32},
            "warm_up": {"num_steps": 10, "batch_size": 8},
        }
    },
    "language": {"tasks_per_step": 4, "group_size": 4, "optimizer": {"lr": 0.01}},
}


RANKS = {
    **CHOSEN,
    "language": {**CHOSEN["language"], "train_service": {"world_size": 2}},
}
GAME = {
    **CHOSEN,
    "dataset": "open_spiel/kuhn_poker",
    "language_task": {"num_train": 64, "num_test": 8},
    "grpo": {"baseline": "agent_average", "advantage_scale": "none"},
    "rl": {},
    "phases": [
        {"name": "alone", "num_iterations": 2, "learners": ["player_0"]},
        {
            "name": "pool",
            "num_iterations": 2,
            "partners": {"player_0": {"kind": "pool", "every": 1}},
        },
    ],
}


def folder_of(lab, key):
    return lab.folder / "home" / "store" / "stages" / key


def final_state(lab, result):
    return LanguageState.load(folder_of(lab, result["states"]["main"]) / "state")


def trained(lab, result):
    return [entry for entry in lab.metrics(result) if entry[1] == "train"]


@pytest.mark.in_turn(4, of="kills")
@pytest.mark.parametrize(
    ("stage", "chosen"),
    [
        pytest.param("rollouts", CHOSEN, marks=pytest.mark.exhaustive),
        ("train", CHOSEN),
        ("train", RANKS),
        ("rollouts", GAME),
        ("train", GAME),
    ],
    ids=["rollouts", "train", "train in ranks", "rollouts of a game", "train two models"],
)
def test_a_killed_run_gives_the_result_of_one_uninterrupted_stage(lab, tmp_path, stage, chosen):
    cut = lab.settings(iterations_per_task=1)
    where = "iteration=2" if stage == "rollouts" else "iteration=3"
    lab.kill(f"stage={stage};{where};within=0.1", chosen, cut)
    resumed = lab.run(chosen, cut)
    assert resumed["cached"] > 0
    fused = lab.settings(iterations_per_task=4, home=str(tmp_path / "other"))
    whole = lab.run(chosen, fused)
    assert trained(lab, resumed) == trained(lab, whole)
    state = final_state(lab, resumed)
    other = LanguageState.load(
        tmp_path / "other" / "store" / "stages" / whole["states"]["main"] / "state"
    )
    assert resumed["states"] == whole["states"], "keys do not depend on stage boundaries"
    assert state == other


def test_a_different_loss_shares_the_first_rollouts(lab):
    cut = lab.settings(iterations_per_task=1)
    lab.run(CHOSEN, cut)
    other = lab.run({**CHOSEN, "grpo": {"variant": "grpo", "clip_high": 0.28}}, cut)
    assert other["cached"] == 3, "data, initial model, first rollouts"
    played = list((lab.folder / "home" / "store" / "stages").glob("*/trajectories.jsonl"))
    assert len(played) == 4 + 3
    assert all(len(load_trajectories(file)) == 16 for file in played)
    longer = lab.run({**CHOSEN, "rl": {"num_iterations": 5}}, cut)
    assert longer["computed"] == 3, "one more rollout stage, one more step, and the test"
