"""Contents of rollouts, the data they use, and their logged statistics."""

from __future__ import annotations

import math

import torch
from tensordict import TensorDict

from trainers.tensordict.statistics.log_stats import (
    final_decisions,
    finished_episodes,
    rollout_stats,
    sum_over_episodes,
)


def _collect(tiny, iteration=0, **changes):
    trainer = tiny.trainer(tiny.parameters(**changes))
    trainer.initial_state()
    collector = trainer.components.collector
    return trainer, collector, collector.collect(iteration)


def test_rollouts_begin_with_a_reset_and_restart_where_an_episode_ends(tiny):
    _, _, rollouts = _collect(tiny)
    assert rollouts.batch_size == (8, 4)
    assert (rollouts["round"][:, 0] == 0).all()
    ended = rollouts["next", "done"] | rollouts["next", "terminated"]
    assert ended.any()
    following = rollouts["round"][:, 1:]
    expected = torch.where(ended[:, :-1], 0, rollouts["round"][:, :-1] + 1)
    assert torch.equal(following, expected)
    assert not rollouts["done"].any()


def test_every_datapoint_comes_once_before_any_comes_twice(tiny):
    _, collector, first = _collect(tiny)
    ids = []
    for rollouts in (first, collector.collect(1), collector.collect(2)):
        for step in range(4):
            begins = rollouts["round"][:, step] == 0
            ids += rollouts["datapoint_id"][begins, step].tolist()
    assert len(ids) > 40
    for start in range(0, len(ids) // 20 * 20, 20):
        assert sorted(ids[start : start + 20]) == list(range(20))


def test_an_iterations_actions_depend_on_its_number_alone(tiny):
    _, collector, _ = _collect(tiny)
    state = collector.cursor.state_dict()
    collector.combined_agents.train()
    one = collector.collect(5)
    collector.cursor.load_state_dict(state)
    torch.rand(3)
    two = collector.collect(5)
    collector.cursor.load_state_dict(state)
    three = collector.collect(6)
    assert torch.equal(one["agents", "message"], two["agents", "message"])
    assert not torch.equal(one["agents", "message"], three["agents", "message"])


def test_cut_off_episodes_have_the_values_of_those_who_act_next(tiny):
    trainer, collector, rollouts = _collect(tiny, rl__steps_per_env_per_iteration=2)
    known = rollouts["next", "agents", "value_known"]
    ongoing = ~(rollouts["next", "done"] | rollouts["next", "terminated"])[:, -1]
    assert not known[:, :-1].any()
    names = list(trainer.agent_names)
    # Rounds 0 and 1 are played, so the verifier acts next in each unfinished episode.
    at_round_one = rollouts["round"][:, -1] == 1
    assert torch.equal(known[:, -1, names.index("verifier")], ongoing & at_round_one)
    assert torch.equal(known[:, -1, names.index("prover")], ongoing & ~at_round_one)
    trainer.components.gae(rollouts)
    learns = rollouts["agents", "learns"]
    # The prover's last action before the cut has no known consequence.
    prover_last = learns[:, -1, names.index("prover")]
    assert not prover_last[ongoing & at_round_one].any()
    assert ((rollouts["agents", "value"][known]).isfinite()).all()
    del collector


def _rollouts():
    """Two environments, four steps, a prover that never decides and a verifier that does."""
    done = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 1]]).bool()
    reward = torch.arange(16.0).view(2, 4, 2)
    decision = torch.full((2, 4, 2), 2)
    decision[0, 1, 1], decision[1, 1, 1] = 1, 0  # the second is before the last step
    active = torch.ones(2, 4, 2, 1, dtype=torch.bool)
    agents = {"decision": decision, "active": active, "done": torch.zeros(2, 4, 2).bool()}
    following = {"done": done, "terminated": torch.zeros_like(done), "agents": {"reward": reward}}
    content = {"agents": agents, "next": following, "y": torch.ones(2, 4, dtype=torch.int64)}
    content["datapoint_id"] = torch.arange(2).view(2, 1).expand(2, 4)
    return TensorDict(content, batch_size=[2, 4])


def test_episodes_are_found_and_summed_over():
    rollouts = _rollouts()
    episodes = finished_episodes(rollouts)
    assert [tensor.tolist() for tensor in episodes] == [[0, 1], [0, 0], [1, 3]]
    assert episodes.length.tolist() == [2, 4]
    total = sum_over_episodes(rollouts["next", "agents", "reward"], episodes)
    assert total.tolist() == [[0 + 2, 1 + 3], [8 + 10 + 12 + 14, 9 + 11 + 13 + 15]]
    assert final_decisions(rollouts, episodes).tolist() == [[2, 1], [2, 0]]


def test_an_episode_after_another_begins_where_that_one_ended():
    rollouts = _rollouts()
    rollouts["next", "done"][0, 2] = True
    episodes = finished_episodes(rollouts)
    assert [tensor.tolist() for tensor in episodes] == [[0, 0, 1], [0, 2, 0], [1, 2, 3]]
    assert final_decisions(rollouts, episodes).tolist()[1] == [2, 2]


def test_accuracy_counts_ended_episodes_only_and_undecided_as_wrong():
    stats = rollout_stats(_rollouts(), ["prover", "verifier"], ["verifier"])
    assert stats["verifier.accuracy"] == 0.5
    assert stats["verifier.decided_fraction"] == 1.0
    assert stats["mean_episode_length"] == 3.0
    assert stats["num_episodes"] == 2.0
    assert "prover.accuracy" not in stats


def test_all_that_is_promised_is_logged_and_finite(tiny):
    trainer = tiny.trainer(tiny.parameters())
    trainer.initial_state()
    (stats,) = trainer.run_iterations(0, 1)
    per_agent = [
        *("mean_step_reward", "mean_episode_reward", "worst_episode_reward", "mean_advantage"),
        *("mean_value", "largest_message_probability"),
        *("mean_value_target", "explained_variance", "message_entropy", "decision_entropy"),
        *("policy_loss", "critic_loss", "entropy", "kl", "clip_fraction"),
        *("effective_sample_size", "gnn.lr", "body.lr", "policy.lr", "value.lr"),
    ]
    expected = {f"{agent}.{name}" for agent in trainer.agent_names for name in per_agent}
    expected |= {"verifier.accuracy", "verifier.std_accuracy", "grad_norm"}
    expected |= {"verifier.worst_datapoint_accuracy", "mean_episode_length"}
    expected |= {"loss_objective", "loss_critic", "loss_entropy"}
    assert expected <= stats.keys()
    assert all(math.isfinite(value) for value in stats.values())
    assert all(type(value) is float for value in stats.values())
