"""Every statistic against a slow judge that goes through the frames one by one."""

from __future__ import annotations

import math
import statistics as plain

import pytest
import torch
from tensordict import TensorDict

from trainers.tensordict.statistics.episodes import PolicyMeasures, categorical_entropy
from trainers.tensordict.statistics.log_stats import loss_stats, rollout_stats

AGENTS = ["prover", "verifier", "other"]
E, T, A, C, P, S = 6, 7, 3, 2, 2, 4


def random_rollouts(seed):
    """Rollouts in which anything may happen anywhere, episodes ending often."""
    draw = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.rand(*shape, generator=draw)

    def chance(probability, *shape):
        return rand(*shape) < probability

    done = chance(0.25, E, T)
    message_logits = 3 * rand(E, T, A, C, P, S)
    message_logits[..., 0] = message_logits[..., 0].masked_fill(
        chance(0.3, E, T, A, C, P), -math.inf
    )
    decision_logits = 3 * rand(E, T, A, 3)
    decision_logits[..., 2] = decision_logits[..., 2].masked_fill(chance(0.3, E, T, A), -math.inf)
    agents = {
        "active": chance(0.6, E, T, A, C),
        "done": chance(0.1, E, T, A),
        "can_decide": chance(0.5, E, T, A),
        "decision": (3 * rand(E, T, A)).long(),
        "message_logits": message_logits,
        "decision_logits": decision_logits,
        "learns": chance(0.7, E, T, A),
        **{name: rand(E, T, A) for name in ("advantage", "value", "value_target")},
    }
    following = {
        "done": done,
        "terminated": done & chance(0.3, E, T),
        "agents": {"reward": rand(E, T, A) - 0.5},
    }
    content = {
        "agents": agents,
        "next": following,
        "y": chance(0.5, E, T).long(),
        "datapoint_id": (4 * rand(E, T)).long(),
    }
    return TensorDict(content, batch_size=[E, T])


def judge_episodes(rollouts):
    """List finished episodes as lists of (environment, step)."""
    episodes = []
    for e in range(E):
        frames = []
        for t in range(T):
            frames.append((e, t))
            if rollouts["next", "done"][e, t] or rollouts["next", "terminated"][e, t]:
                episodes.append(frames)
                frames = []
    return episodes


def acts(rollouts, e, t, a):
    agents = rollouts["agents"]
    return bool(agents["active"][e, t, a].any()) and not bool(agents["done"][e, t, a])


def softmax(logits):
    largest = max(logits)
    weights = [math.exp(x - largest) for x in logits]
    return [w / sum(weights) for w in weights]


def entropy(logits):
    return -sum(p * math.log(p) for p in softmax(logits) if p > 0)


def judge(rollouts):
    """Compute everything with loops and floats."""
    agents, stats = rollouts["agents"], {}
    reward = rollouts["next", "agents", "reward"].tolist()
    episodes = judge_episodes(rollouts)
    stats["num_episodes"] = len(episodes)
    lengths = [len(frames) for frames in episodes]
    stats["mean_episode_length"] = plain.fmean(lengths)
    stats["std_episode_length"] = plain.pstdev(lengths)
    everywhere = [(e, t) for e in range(E) for t in range(T)]
    for a, name in enumerate(AGENTS):
        sums = [sum(reward[e][t][a] for e, t in frames) for frames in episodes]
        stats[f"{name}.mean_step_reward"] = plain.fmean(reward[e][t][a] for e, t in everywhere)
        stats[f"{name}.mean_episode_reward"] = plain.fmean(sums)
        stats[f"{name}.worst_episode_reward"] = min(sums)
        learned = [(e, t) for e, t in everywhere if agents["learns"][e, t, a]]
        for what in ("advantage", "value", "value_target"):
            values = [float(agents[what][e, t, a]) for e, t in learned]
            stats[f"{name}.mean_{what}"] = plain.fmean(values)
        target = [float(agents["value_target"][e, t, a]) for e, t in learned]
        missed = [
            y - float(agents["value"][e, t, a]) for y, (e, t) in zip(target, learned, strict=True)
        ]
        unexplained = plain.pvariance(missed) / plain.pvariance(target)
        stats[f"{name}.explained_variance"] = 1 - unexplained
        said = [
            agents["message_logits"][e, t, a, c].tolist()
            for e, t in everywhere
            for c in range(C)
            if acts(rollouts, e, t, a) and agents["active"][e, t, a, c]
        ]
        measured = {
            "message_entropy": [sum(map(entropy, each)) for each in said],
            "largest_message_probability": [
                plain.fmean(max(softmax(logits)) for logits in each) for each in said
            ],
            "decision_entropy": [
                entropy(agents["decision_logits"][e, t, a].tolist())
                for e, t in everywhere
                if acts(rollouts, e, t, a) and agents["can_decide"][e, t, a]
            ],
        }
        for what, values in measured.items():
            stats[f"{name}.{what}"] = plain.fmean(values)
            stats[f"{name}.std_{what}"] = plain.pstdev(values)
    return stats | judge_decisions(rollouts, episodes)


def judge_decisions(rollouts, episodes):
    right, by_datapoint, decided = [], {}, []
    for frames in episodes:
        made = [
            int(rollouts["agents", "decision"][e, t, 1])
            for e, t in frames
            if acts(rollouts, e, t, 1) and rollouts["agents", "decision"][e, t, 1] < 2
        ]
        decided.append(bool(made))
        right.append(float(bool(made) and made[-1] == int(rollouts["y"][frames[-1]])))
        by_datapoint.setdefault(int(rollouts["datapoint_id"][frames[-1]]), []).append(right[-1])
    shares = [plain.fmean(each) for each in by_datapoint.values()]
    return {
        "verifier.accuracy": plain.fmean(right),
        "verifier.std_accuracy": plain.pstdev(right),
        "verifier.mean_datapoint_accuracy": plain.fmean(shares),
        "verifier.std_datapoint_accuracy": plain.pstdev(shares),
        "verifier.worst_datapoint_accuracy": min(shares),
        "verifier.decided_fraction": plain.fmean(map(float, decided)),
    }


@pytest.mark.parametrize("seed", range(4))
def test_all_statistics_of_rollouts_are_those_of_the_judge(seed):
    rollouts = random_rollouts(seed)
    found, expected = rollout_stats(rollouts, AGENTS, ["verifier"]), judge(rollouts)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


def test_measures_of_pieces_are_those_of_the_whole():
    rollouts = random_rollouts(7)
    acting = rollouts["agents", "active"].any(-1) & ~rollouts["agents", "done"]
    whole, pieces = PolicyMeasures(), PolicyMeasures()
    whole.add(rollouts, acting, with_values=True)
    for t in range(T):
        pieces.add(rollouts[:, t], acting[:, t], with_values=True)
    assert whole.summary().keys() == pieces.summary().keys()
    spread = ("message_entropy", "largest_message_probability", "decision_entropy")
    assert set(whole.summary()) == {*spread, "mean_value", *(f"std_{name}" for name in spread)}
    for name, means in whole.summary().items():
        assert torch.allclose(means, pieces.summary()[name]), name


def test_what_nobody_does_is_zero_and_never_nan():
    rollouts = random_rollouts(3)
    rollouts["agents", "message_logits"].fill_(-math.inf)
    measures = PolicyMeasures()
    measures.add(rollouts, torch.zeros(E, T, A, dtype=torch.bool), with_values=True)
    assert all(torch.equal(means, torch.zeros(A)) for means in measures.summary().values())


def test_rollouts_without_verifier_messages_and_labels_are_measured_as_far_as_can_be():
    rollouts = random_rollouts(1)
    agents = {"observation": torch.zeros(E, T, A, 2), "done": torch.zeros(E, T, A).bool()}
    bare = TensorDict({"agents": agents, "next": rollouts["next"]}, batch_size=[E, T])
    found, expected = rollout_stats(bare, AGENTS, []), judge(rollouts)
    of_rewards = [f"{a}.{w}_reward" for a in AGENTS for w in ("mean_step", "worst_episode")]
    for name in ("num_episodes", "std_episode_length", *of_rewards):
        assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5)
    assert not any("accuracy" in name or "entropy" in name for name in found)


def test_no_finished_episode_is_no_statistic_of_episodes():
    rollouts = random_rollouts(1)
    rollouts["next", "done"].fill_(False)
    rollouts["next", "terminated"].fill_(False)
    found = rollout_stats(rollouts, AGENTS, ["verifier"])
    assert found["num_episodes"] == 0
    assert not any("episode_" in name or "accuracy" in name for name in found)


def test_entropy_ignores_what_is_impossible():
    logits = torch.tensor([[0.0, 0.0, -torch.inf], [5.0, -torch.inf, -torch.inf]])
    assert categorical_entropy(logits).tolist() == pytest.approx([math.log(2), 0.0])


def test_losses_are_named_by_agent_or_by_themselves():
    losses = TensorDict({"loss_critic": torch.tensor(2.0), "kl": torch.tensor([1.0, 2.0, 3.0])})
    losses["of_frames"] = torch.tensor([[1, 2], [3, 6]])
    expected = {"loss_critic": 2.0, "prover.kl": 1.0, "verifier.kl": 2.0, "other.kl": 3.0}
    expected["of_frames"] = 3.0
    assert loss_stats(losses, AGENTS) == expected


@pytest.mark.parametrize("coefficient", [0.0, 0.25])
def test_the_critics_loss_is_logged_without_its_coefficient_too(tiny, coefficient):
    trainer = tiny.trainer(tiny.parameters(ppo__critic_coef=coefficient))
    trainer.initial_state()
    (stats,) = trainer.run_iterations(0, 1)
    by_agent = [stats[f"{name}.critic_loss"] for name in trainer.agent_names]
    assert stats["loss_critic_unscaled"] == pytest.approx(sum(by_agent))
    assert stats["loss_critic"] == pytest.approx(coefficient * stats["loss_critic_unscaled"])
    assert stats["loss_critic_unscaled"] > 0


def test_a_test_measures_what_its_table_and_its_frames_say(tiny):
    trainer = tiny.trainer(tiny.parameters(rl__num_test_iterations=100))
    trainer.initial_state()
    result = trainer.run_test("train")
    table, metrics = result.table, result.metrics
    rounds, correct = table["rounds"], [float(c) for c in table["correct"]]
    assert metrics["mean_episode_length"] == pytest.approx(plain.fmean(rounds))
    assert metrics["std_episode_length"] == pytest.approx(plain.pstdev(rounds))
    assert metrics["verifier.std_accuracy"] == pytest.approx(plain.pstdev(correct))
    assert metrics["verifier.worst_datapoint_accuracy"] == min(correct)
    for name in trainer.agent_names:
        reward = table[f"reward.{name}"]
        assert metrics[f"{name}.mean_step_reward"] == pytest.approx(sum(reward) / sum(rounds))
        assert metrics[f"{name}.worst_episode_reward"] == min(reward)
        assert 0 < metrics[f"{name}.message_entropy"] <= math.log(8)
        assert 1 / 8 <= metrics[f"{name}.largest_message_probability"] <= 1
        assert math.isfinite(metrics[f"{name}.mean_value"])
    assert metrics["verifier.decision_entropy"] > 0 == metrics["prover.decision_entropy"]


def test_a_test_measures_counted_datapoints_only(tiny):
    """Episodes that only fill up environments do not change statistics."""
    hyper_params = tiny.parameters(rl__num_test_iterations=1, rl__frames_per_batch=12)
    few = tiny.trainer(hyper_params)
    few.initial_state()
    found = few.run_test().metrics
    player = few.components.test_collector
    assert player.num_envs == 3
    counted, values = [], {name: [] for name in few.agent_names}
    original = player._measure

    def watched(td, which):
        counted.append(which.tolist())
        for e in which.nonzero().flatten().tolist():
            for a, name in enumerate(few.agent_names):
                if td["agents", "active"][e, a].any():
                    values[name].append(float(td["agents", "value"][e, a]))
        original(td, which)

    player._measure = watched
    assert few.run_test().metrics == found
    assert counted[0] == [True, True, True]
    assert not all(all(which) for which in counted), "an episode that ended was followed"
    for name, seen in values.items():
        assert found[f"{name}.mean_value"] == pytest.approx(plain.fmean(seen), rel=1e-5)


def test_statistics_of_tests_have_their_prefix_where_they_are_recorded(tiny):
    trainer = tiny.trainer(tiny.parameters())
    trainer.train()
    tested = [record for record in trainer.history if record.stage == "test"]
    assert tested
    assert all(name.startswith("test_") for record in tested for name in record.values)
    rollouts = trainer.sample_rollouts(3)
    stats = trainer._get_log_stats(rollouts, train=False)
    assert all(name.startswith("test_") for name in stats)
    assert {name.removeprefix("test_") for name in stats} == set(trainer._get_log_stats(rollouts))
