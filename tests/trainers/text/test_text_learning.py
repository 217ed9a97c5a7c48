"""Training data of each agent: rollouts by its reward, replaced guesses, preference pairs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ratchet.errors import ParameterError
from ratchet.rollouts.outcomes import episode_rewards, final_decisions
from trainers import PureTextRlTrainer
from trainers.text.malt import nodes_per_tree


@pytest.fixture
def learned(tiny_text, tmp_path, monkeypatch):
    """Sample an iteration's rollouts, and record the groups' training data."""

    def learn(iteration=0, **changes):
        trainer = tiny_text.trainer(tiny_text.parameters(**changes))
        trainer.initial_state()
        rollouts, _ = trainer.sample_rollouts(0, tmp_path / f"{len(asked)}.jsonl")
        trainer._iteration = iteration
        for name, group in trainer.shared_model_groups.items():

            def note(*given, name=name):
                asked[name] = given

            monkeypatch.setattr(group, "create_supervised_fine_tune_job", note)
            monkeypatch.setattr(group, "create_dpo_fine_tune_job", note)
        previous = [rollouts] * iteration
        trainer.create_fine_tune_jobs(iteration, rollouts, previous)
        return trainer, rollouts, dict(asked)

    asked: dict[str, tuple] = {}
    return learn


def ids(rollouts) -> list[int]:
    return rollouts["rollout_id"].tolist()


def test_each_agent_learns_from_the_rollouts_that_paid_it(learned):
    trainer, rollouts, asked = learned()
    rewards = episode_rewards(rollouts)
    for place, agent in enumerate(trainer.agent_names):
        chosen, replaced = asked[agent]
        assert ids(chosen[agent]) == np.flatnonzero(rewards[:, place] >= 0.9).tolist()
        assert all(len(aside) == 0 for aside in replaced.values())
    assert ids(asked["prover"][0]["prover"]) != ids(asked["verifier"][0]["verifier"])


def test_agents_of_one_group_are_chosen_for_each_by_its_own_reward(learned):
    trainer, rollouts, asked = learned(agents___default__shared_model_group="both")
    rewards = episode_rewards(rollouts)
    (chosen, replaced) = asked["both"]
    for place, agent in enumerate(trainer.agent_names):
        assert ids(chosen[agent]) == np.flatnonzero(rewards[:, place] >= 0.9).tolist()
    assert list(replaced) == ["verifier"]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.34, 1.0), (0.0, 0.5), (0.3, 0.7)])
def test_datapoints_are_learned_from_whose_pass_rate_lies_in_a_range(learned, low, high):
    """Eight datapoints, each played three times; judged by counting."""
    trainer, rollouts, asked = learned(
        text_rl__rollouts_per_datapoint=3,
        pure_text_ei__min_pass_rate=low,
        pure_text_ei__max_pass_rate=high,
    )
    verifier = trainer.agent_names.index("verifier")
    right = final_decisions(rollouts, verifier) == rollouts["y"]
    rate = {d: right[rollouts["datapoint_id"] == d].mean() for d in range(8)}
    kept = [low <= rate[d] <= high for d in rollouts["datapoint_id"].tolist()]
    assert sum(kept) == 24 if high - low == 1 else 0 < sum(kept) < 24
    rewards = episode_rewards(rollouts)
    for place, agent in enumerate(trainer.agent_names):
        wanted = np.flatnonzero(np.array(kept) & (rewards[:, place] >= 0.9))
        assert ids(asked[agent][0][agent]) == rollouts["rollout_id"][wanted].tolist()


def test_a_range_of_pass_rates_that_is_none_is_refused(tiny_text):
    with pytest.raises(ParameterError, match=r"min_pass_rate <= max_pass_rate, got 0.8 > 0.2"):
        tiny_text.parameters(pure_text_ei__min_pass_rate=0.8, pure_text_ei__max_pass_rate=0.2)


def test_the_share_with_replaced_guesses_is_set_aside_first(learned):
    _, rollouts, asked = learned(text_rl__verifier_guess_replacement_proportion=0.25)
    chosen, replaced = asked["verifier"]
    aside = ids(replaced["verifier"])
    assert len(aside) == round(0.25 * 24)
    assert not set(aside) & set(ids(chosen["verifier"]))
    paid = set(np.flatnonzero(episode_rewards(rollouts)[:, 1] >= 0.9).tolist())
    assert set(ids(chosen["verifier"])) == paid - set(aside)
    assert asked["prover"][1] == {}


def test_the_share_falls_from_iteration_to_iteration(learned):
    changes = {
        "text_rl__verifier_guess_replacement_proportion": 0.5,
        "text_rl__verifier_guess_replacement_annealing": "linear",
        "text_rl__verifier_guess_replacement_annealing_rate": 0.25,
    }
    sizes = [len(learned(i, **changes)[2]["verifier"][1]["verifier"]) for i in range(3)]
    assert sizes == [12, 6, 0]


def test_weighted_sampling_draws_anew_for_each_agent_iteration_and_seed(learned):
    changes = {"pure_text_ei__rollout_selection_method": "weighted_sampling"}
    first = learned(**changes)[2]
    drawn = ids(first["verifier"][0]["verifier"])
    assert len(drawn) == 12
    assert drawn == ids(learned(**changes)[2]["verifier"][0]["verifier"])
    assert drawn != ids(learned(1, **changes)[2]["verifier"][0]["verifier"])
    assert drawn != ids(first["prover"][0]["prover"])


def test_all_earlier_rollouts_are_learned_from_too(learned):
    changes = {"text_rl__fine_tune_on_all_previous_rollouts": True}
    _, rollouts, asked = learned(2, **changes)
    paid = int((episode_rewards(rollouts)[:, 0] >= 0.9).sum())
    assert len(asked["prover"][0]["prover"]) == 3 * paid


def test_frozen_agents_and_those_whose_schedule_is_off_do_not_learn(learned):
    prover_first = {"kind": "alternating_periodic", "period": 1, "first_agent": "prover"}
    changes = {"agents___default__update_schedule": prover_first}
    assert list(learned(0, **changes)[2]) == ["prover"]
    assert "verifier" in learned(1, **changes)[2]
    one = learned(0, **changes, agents___default__shared_model_group="both")
    assert list(one[2]["both"][0]) == ["prover"]
    trainer, _, _ = learned(0, agents__verifier={"freeze_agent": True})
    assert list(trainer.learning_model_groups) == ["prover"]


def test_a_trainer_may_name_its_jobs_as_the_earlier_system_did(tiny_text):
    class Naming(PureTextRlTrainer):
        def _stage_create_fine_tune_jobs(self, rollouts):
            for group in self.shared_model_groups.values():
                group.create_supervised_fine_tune_job(
                    dict.fromkeys(group.agent_names, rollouts),
                    job_name=self._get_fine_tune_job_name(group),
                )

    trainer = tiny_text.trainer(tiny_text.parameters(), found=Naming)
    trainer.train()
    names = trainer.state.shared_model_groups["verifier"].model_names
    assert [name.split(":")[2] for name in names[1:]] == ["verifier-0", "verifier-1"]


def test_a_group_asked_out_of_turn_makes_no_job(tiny_text, tmp_path):
    """Custom trainers may call all groups; the schedule is applied nevertheless."""
    off = {"kind": "contiguous_periodic", "period": 2, "start": 1, "stop": 2}
    hyper_params = tiny_text.parameters(agents___default__update_schedule=off)
    trainer = tiny_text.trainer(hyper_params)
    trainer.initial_state()
    rollouts, _ = trainer.sample_rollouts(0, tmp_path / "journal.jsonl")
    trainer._stage_create_fine_tune_jobs = lambda rollouts: [
        group.create_supervised_fine_tune_job({name: rollouts})
        for name, group in trainer.shared_model_groups.items()
    ]
    state = trainer.create_fine_tune_jobs(0, rollouts)
    assert {g.no_job_reason for g in state.shared_model_groups.values()} == {"frozen"}
    assert trainer.job_stats()["verifier.frozen"] == 1
    assert trainer.await_fine_tune_jobs(0).iteration == 1
    assert (
        trainer.create_fine_tune_jobs(1, rollouts).shared_model_groups["verifier"].fine_tune_job_id
    )


def test_trees_hold_every_answer_once(learned):
    _, rollouts, _ = learned(trainer="pure_text_malt")
    node_id, per_tree = rollouts["node_id"], nodes_per_tree(2, 3)
    assert per_tree == 14
    trees = node_id[:, 0] // per_tree
    assert sorted(set(trees.tolist())) == list(range(24))
    places = node_id - trees[:, None] * per_tree
    for row in range(len(rollouts)):
        played = ~rollouts["padding"][row]
        assert (node_id[row] >= 0).tolist() == played.tolist()
        branch = [p + 1 for p in places[row][played].tolist()]
        assert [(p - 1) // 2 for p in branch] == [0, *branch[:-1]]
        same = np.flatnonzero(trees == trees[row])
        for other in same:
            shared = node_id[row] == node_id[other]
            for key in ("prompt", "raw_message"):
                mine = rollouts["agents", key][row][shared & played]
                theirs = rollouts["agents", key][other][shared & played]
                assert mine.tolist() == theirs.tolist()
        assert len({rollouts["seed"][other] for other in same}) == 1


def test_a_full_tree_has_all_its_leaves(tiny_text, tmp_path):
    """Agents that may not decide before the last round play all rounds."""
    hyper_params = tiny_text.parameters(
        trainer="pure_text_malt",
        nip_protocol={"max_message_rounds": 3, "min_message_rounds": 3},
        protocol_common__verifier_first=False,
        pure_text_malt__num_responses_per_timestep=3,
        rl__rollouts_per_iteration=2,
    )
    trainer = tiny_text.trainer(hyper_params)
    trainer.initial_state()
    rollouts, _ = trainer.sample_rollouts(0, tmp_path / "journal.jsonl")
    full = ~rollouts["padding"].any(axis=1)
    assert full.any()
    trees = rollouts["node_id"][:, 0] // nodes_per_tree(3, 3)
    for tree in range(2):
        leaves = rollouts[np.flatnonzero(trees == tree)]
        weights = 3.0 ** -(~leaves["padding"]).sum(axis=1)
        assert weights.sum() == pytest.approx(1)


def test_pairs_prefer_what_the_agent_expects_more_from(learned):
    """Judged by walking the sampled trees, prefix by prefix."""
    trainer, rollouts, asked = learned(trainer="pure_text_malt", rl__rollouts_per_iteration=8)
    for place, agent in enumerate(trainer.agent_names):
        mid_point = trainer.protocol_handler.reward_mid_point_estimate(agent)
        pairs = asked[agent][0][agent]
        assert pairs
        expected: dict[tuple[str, str], list[float]] = {}
        for row in range(len(rollouts)):
            for step in range(3):
                if rollouts["agents", "active"][row, step, place]:
                    key = (
                        rollouts["agents", "prompt"][row, step, place],
                        rollouts["agents", "raw_message"][row, step, place],
                    )
                    reward = rollouts["agents", "reward"][row, step:, place].sum()
                    expected.setdefault(key, []).append(float(reward))
        for pair in pairs:
            assert np.mean(expected[pair.prompt, pair.preferred]) > mid_point
            assert np.mean(expected[pair.prompt, pair.non_preferred]) <= mid_point
            assert json.loads(pair.prompt)[0]["role"] == "system"


def test_tree_statistics_by_hand(tiny_text, tmp_path):
    """One tree: of the verifier's two first answers one decides rightly, one asks on."""
    trainer = tiny_text.trainer(
        tiny_text.parameters(trainer="pure_text_malt", rl__rollouts_per_iteration=1)
    )
    trainer.initial_state()
    rollouts, _ = trainer.sample_rollouts(0, tmp_path / "journal.jsonl")
    leaves = rollouts[np.zeros(3, np.int64)]
    leaves["node_id"] = np.array([[0, -1, -1], [1, 4, 10], [1, 4, 11]])
    leaves["padding"] = leaves["node_id"] < 0
    active = np.zeros((3, 3, 2), bool)
    active[:, 0, 1] = True
    active[1:, 1, 0] = active[1:, 2, 1] = True
    reward = np.zeros((3, 3, 2), np.float32)
    reward[0, 0, 1] = 1
    reward[1, 2] = (1, -1)
    reward[2, 2] = (0, 1)
    leaves["agents", "active"], leaves["agents", "reward"] = active, reward
    stats = trainer.compute_stats(0, leaves)
    wanted = {
        "verifier.expected_reward": (1 + 0 - 1 + 1) / 4,
        "verifier.positive_proportion": 0.5,
        "verifier.both_proportion": 1.0,
        "verifier.round_0.expected_reward": 0.5,
        "verifier.round_2.expected_reward": 0.0,
        "prover.expected_reward": 0.5,
        "prover.round_1.positive_proportion": 0.0,
        "prover.both_proportion": 0.0,
    }
    assert {name: stats[name] for name in wanted} == pytest.approx(wanted)
    assert "verifier.round_1.expected_reward" not in stats
