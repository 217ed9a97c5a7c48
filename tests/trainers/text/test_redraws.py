"""Turns are sampled again from their prefixes, with common random numbers elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from ratchet.algorithms.replayed_credit import original_rows
from ratchet.errors import ParameterError, RolloutError
from ratchet.language_models.estimates import estimate_experiment
from trainers.registry import trainer_class
from trainers.text.grpo import PureTextGrpoTrainer, reply_trajectories

REDRAWS = {"prover": 1, "verifier": 2}


def parameters(tiny_text, **changes):
    return tiny_text.parameters(
        trainer="pure_text_grpo", **{"pure_text_grpo__redraws": REDRAWS, **changes}
    )


@pytest.fixture
def sampled(tiny_text, tmp_path):
    """Return the trainer, its rollouts and the ids of its calls."""

    def sample(**changes):
        trainer = tiny_text.trainer(parameters(tiny_text, **changes))
        trainer.initial_state()
        rollouts, usage = trainer.sample_rollouts(0, tmp_path / "calls.jsonl")
        calls = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
        assert usage.total.calls == len(calls)
        return trainer, rollouts, [call["id"] for call in calls]

    return sample


def test_each_turn_is_redrawn_and_everything_else_replayed(sampled):
    trainer, rollouts, _ = sampled()
    node_id, raw = rollouts["node_id"], rollouts["agents", "raw_message"]
    active = rollouts["agents", "active"]
    original = original_rows(node_id)
    is_original = original == np.arange(len(original))
    assert is_original.sum() == 24
    changed = 0
    for row in np.flatnonzero(~is_original).tolist():
        first = original[row]
        step = int((node_id[row] >= 0).argmax())
        agent = int(node_id[row, step])
        assert active[first, step, agent]
        assert rollouts["datapoint_id"][row] == rollouts["datapoint_id"][first]
        changed += raw[row, step, agent] != raw[first, step, agent]
        same = active[row] & active[first]
        same[step, agent] = False
        # Dummy replies depend only on the seed of the call.
        np.testing.assert_array_equal(raw[row][same], raw[first][same])
    assert changed > 0.8 * (~is_original).sum()
    for row in np.flatnonzero(is_original).tolist():
        turns = [
            (step, name)
            for step, agent in np.argwhere(active[row]).tolist()
            for name in [trainer.agent_names[agent]] * REDRAWS[trainer.agent_names[agent]]
        ]
        found = node_id[(original == row) & ~is_original]
        steps = (found >= 0).argmax(1)
        names = [trainer.agent_names[a] for a in found.max(1)]
        assert list(zip(steps.tolist(), names, strict=True)) == turns


@pytest.mark.parametrize("protocol", ["nip", "debate"])
def test_replies_to_the_same_view_are_not_requested_again(sampled, protocol):
    redraws = {"verifier": 1, "prover" if protocol == "nip" else "prover0": 2}
    _, rollouts, ids = sampled(interaction_protocol=protocol, pure_text_grpo__redraws=redraws)
    node_id, active = rollouts["node_id"], rollouts["agents", "active"]
    is_redrawn = (node_id >= 0).any(1)
    after = np.arange(node_id.shape[1]) > (node_id >= 0).argmax(1)[:, None]
    continued = active[is_redrawn] & after[is_redrawn][..., None]
    assert (
        len(set(ids)) == len(ids) == active[~is_redrawn].sum() + is_redrawn.sum() + continued.sum()
    )
    if protocol == "debate":  # both provers reply at a time
        assert (active.sum(2) == 2).any()


def test_only_chosen_agents_are_redrawn_and_tests_are_single_rollouts(sampled, tmp_path):
    trainer, rollouts, _ = sampled(pure_text_grpo__redraws={"verifier": 1})
    verifier = trainer.agent_names.index("verifier")
    assert set(rollouts["node_id"].ravel().tolist()) == {-1, verifier}
    tested, _, _ = trainer.test(0, tmp_path / "test.jsonl")
    assert len(tested) == 4
    assert (tested["node_id"] == -1).all()


def test_draws_of_a_turn_are_compared_and_other_agents_have_mean_rewards(sampled):
    trainer, rollouts, _ = sampled(pure_text_grpo__redraws={"verifier": 2})
    place = trainer.agent_names.index("verifier")
    drawn = reply_trajectories(rollouts, "verifier", place, is_redrawn=True)
    groups = [one.group_id for one in drawn]
    assert {groups.count(name) for name in groups} == {3}
    rewards = rollouts["agents", "reward"].sum(1)[:, place]
    assert [one.reward for one in drawn] == [rewards[int(one.attempt_id)] for one in drawn]
    prover = trainer.agent_names.index("prover")
    others = reply_trajectories(rollouts, "prover", prover)
    assert {one.attempt_id for one in others} == {
        str(row)
        for row in set(original_rows(rollouts["node_id"]).tolist())
        if rollouts["agents", "active"][row, :, prover].any()
    }
    assert any(one.reward % 1 for one in others)


def test_advantages_of_draws_are_rewards_minus_the_other_draws(tiny_text, sampled, monkeypatch):
    taken = []
    monkeypatch.setattr(
        "ratchet.scenarios.pure_text.agents.token_training._train",
        lambda group, steps, name: taken.append((group.name, steps)) or ("session", "model", {}),
    )
    trainer, rollouts, _ = sampled(
        pure_text_grpo__redraws={"verifier": 1}, pure_text_grpo__advantage_scale="none"
    )
    trainer.create_fine_tune_jobs(0, rollouts)
    steps = dict(taken)["verifier"]
    advantages = [example.advantages[-1] for example in steps.examples]
    assert sum(advantages) == 0
    node_id = rollouts["node_id"]
    rewards = rollouts["agents", "reward"].sum(1)[:, trainer.agent_names.index("verifier")]
    redrawn = np.flatnonzero((node_id >= 0).any(1))
    differences = rewards[redrawn] - rewards[original_rows(node_id)[redrawn]]
    assert sorted(a for a in advantages if a > 0) == sorted(abs(differences[differences != 0]))
    assert "verifier.critic/baseline" not in trainer.job_stats()
    assert "prover.critic/baseline" in trainer.job_stats()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pure_text_grpo__redraws": {"judge": 1}}, "redraws: got 'judge', expected agents"),
        ({"agents__prover__freeze_agent": True}, "redraws: got 'prover', expected agents"),
    ],
)
def test_agents_that_do_not_learn_are_not_redrawn(tiny_text, changes, message):
    with pytest.raises(ParameterError, match=message):
        PureTextGrpoTrainer.check_parameters(parameters(tiny_text, **changes))


def test_a_single_rollout_of_a_datapoint_is_enough_if_all_turns_are_redrawn(tiny_text):
    changes = {"pure_text_grpo__baseline": "leave_one_out"}
    PureTextGrpoTrainer.check_parameters(parameters(tiny_text, **changes))
    changes["pure_text_grpo__redraws"] = {"verifier": 1}
    with pytest.raises(ParameterError, match="rollouts_per_datapoint: got 1"):
        PureTextGrpoTrainer.check_parameters(parameters(tiny_text, **changes))


def test_redraws_concern_rollouts_and_training_and_are_estimated(tiny_text):
    before = parameters(tiny_text, pure_text_grpo__redraws={})
    after = parameters(tiny_text)
    found = trainer_class(before)
    assert found.declares_sample_count()
    stages = ("sample_rollouts", "log_stats", "test", "create_fine_tune_jobs")
    changed = [
        stage
        for stage in stages
        if found.stage_key_parameters(before, stage) != found.stage_key_parameters(after, stage)
    ]
    assert changed == ["sample_rollouts", "create_fine_tune_jobs"]
    first, *_ = estimate_experiment(before, found, 8, 4).stages
    more, *_ = estimate_experiment(after, found, 8, 4).stages
    assert first.calls == 24 * 3
    # verifier, prover, verifier: a redrawn turn is followed by all later ones
    assert more.calls == 24 * ((1 + 2) + (1 + 2 + 1) + (1 + 2 + 1 + 2))
    tests = [s.calls for s in estimate_experiment(after, found, 8, 4).stages if s.stage == "test"]
    assert tests == [4 * 3]


def test_a_replayed_last_turn_repeats_the_reply_to_an_edited_position(tiny_text, tmp_path):
    trainer = tiny_text.trainer(parameters(tiny_text))
    trainer.initial_state()
    rollouts, _, _ = trainer.test("test", tmp_path / "test.jsonl")
    seen = {}

    def edit(position):
        seen[position.datapoint_id] = position
        return replace(position, solution="another")

    actions = trainer.replay_last_turns(rollouts, "verifier", edit, "edited")
    verifier = trainer.agent_names.index("verifier")
    for row, action in enumerate(actions):
        last = int(rollouts["agents", "active"][row, :, verifier].nonzero()[0][-1])
        position = seen[rollouts["datapoint_id"][row]]
        assert position.round == last
        assert {message.round for message in position.messages} == set(range(last))
        assert "another" in action.prompt[0].content
        assert position.solution not in action.prompt[0].content
        # Dummy replies depend only on the seed of the call.
        assert action.raw_message == rollouts["agents", "raw_message"][row, last, verifier]
        assert action.decision == rollouts["agents", "decision"][row, last, verifier]


def test_an_agent_without_a_turn_is_named(tiny_text, tmp_path):
    trainer = tiny_text.trainer(parameters(tiny_text))
    trainer.initial_state()
    rollouts, _, _ = trainer.test("test", tmp_path / "test.jsonl")
    rollouts["agents", "active"][...] = False
    with pytest.raises(RolloutError, match="the agent 'verifier' has no turn"):
        trainer.replay_last_turns(rollouts, "verifier", lambda position: position, "same")
