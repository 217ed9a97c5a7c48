"""A test plays each datapoint once, to its end, and reports its outcome."""

from __future__ import annotations

import pytest

from ratchet.errors import UnknownNameError
from trainers.tensordict.statistics.log_stats import rollout_stats
from trainers.tensordict.vanilla_ppo import VanillaPpoTrainer


def _tested(tiny, dataset="test", **changes):
    trainer = tiny.trainer(tiny.parameters(**changes))
    trainer.initial_state()
    return trainer, trainer.run_test(dataset)


def test_the_whole_test_set_is_seen_exactly_once_when_there_is_time(tiny):
    trainer, result = _tested(tiny, rl__num_test_iterations=100)
    table = result.table
    assert table["datapoint_id"] == list(range(10))
    assert result.metrics["num_datapoints"] == 10
    dataset = trainer.scenario_instance.test_dataset
    assert table["y"] == dataset["y"].tolist()
    assert table["wl_score"] == dataset["wl_score"].tolist()
    assert {len(column) for column in table.values()} == {10}


def test_fewer_iterations_test_fewer_datapoints_each_once(tiny):
    _, result = _tested(tiny, rl__num_test_iterations=1, rl__frames_per_batch=12)
    assert result.table["datapoint_id"] == [0, 1, 2]


def test_an_episode_does_not_depend_on_how_many_others_are_wanted(tiny):
    _, few = _tested(tiny, rl__num_test_iterations=1, rl__frames_per_batch=12)
    _, many = _tested(tiny, rl__num_test_iterations=9, rl__frames_per_batch=12)
    for name, column in few.table.items():
        assert column == many.table[name][:3], name


def test_actions_are_the_likeliest_unless_tests_sample_them(tiny):
    changes = {"rl__num_test_iterations": 100}
    _, likeliest = _tested(tiny, **changes)
    trainer, sampled = _tested(tiny, rl__test_by_sampling=True, **changes)
    before = trainer.state
    assert trainer.run_test() == sampled, "the draws follow from the seed"
    assert trainer.state == before
    assert sampled.table["datapoint_id"] == likeliest.table["datapoint_id"]
    assert sampled.table != likeliest.table
    played = _actions(trainer)
    assert _actions(tiny.trainer(tiny.parameters(**changes))) == {True}
    assert played == {True, False}


def _actions(trainer):
    """Return whether decisions in a test were greedy."""
    trainer.initial_state()
    player, seen = trainer.components.test_collector, set()
    measure = player._measure

    def watched(td, counted):
        logits, chosen = td["agents", "decision_logits"], td["agents", "decision"]
        seen.update((chosen == logits.argmax(-1))[td["agents", "can_decide"]].tolist())
        measure(td, counted)

    player._measure = watched
    trainer.run_test("test")
    return seen


def test_rewards_decisions_and_rounds_are_those_of_the_protocol(tiny):
    _, result = _tested(tiny, "train", rl__num_test_iterations=100)
    table = result.table
    assert len(table["y"]) == 20
    rows = zip(
        table["y"],
        table["decision.verifier"],
        table["reward.verifier"],
        table["reward.prover"],
        table["correct"],
        table["terminated"],
        table["rounds"],
        strict=True,
    )
    for y, decision, verifier, prover, correct, terminated, rounds in rows:
        assert verifier == (1.0 if decision == y else -1.0)
        assert prover == (1.0 if decision == 1 else 0.0)
        assert correct == (decision == y)
        assert terminated == (decision == 2)
        assert 1 <= rounds <= 4
        assert rounds % 2 == 1 or rounds == 4  # the verifier has even rounds
    assert table["decision.prover"] == [2] * 20
    mean = sum(table["correct"]) / 20
    assert result.metrics["accuracy"] == result.metrics["verifier.accuracy"] == mean


def test_an_unknown_dataset_is_named(tiny):
    with pytest.raises(UnknownNameError, match=r"no 'tset' to test on\. Did you mean 'test'"):
        _tested(tiny, "tset")


def test_a_test_run_is_one_iteration_with_one_minibatch(tiny):
    trainer = tiny.trainer(tiny.parameters(), test_run=True)
    steps = []
    step = trainer.components.optimizer.step
    trainer.components.optimizer.step = lambda: steps.append(1) or step()
    trainer.train()
    assert len(steps) == 1
    assert trainer.iteration == 1


@pytest.mark.parametrize("zero_knowledge", [False, True])
def test_a_forced_decision_is_what_tests_and_training_count(tiny, zero_knowledge):
    """The actions that are learned from stay those that were drawn."""
    common = {
        "protocol_common__force_guess": "y",
        "protocol_common__zero_knowledge": zero_knowledge,
    }
    trainer, result = _tested(tiny, rl__num_test_iterations=100, **common)
    assert result.table["decision"] == result.table["y"]
    assert result.metrics["accuracy"] == 1
    assert not any(result.table["terminated"])
    rollouts = trainer.sample_rollouts(0)
    handler = trainer.scenario_instance.protocol_handler
    stats = rollout_stats(rollouts, handler.agent_names, handler.verifier_names)
    assert stats["verifier.accuracy"] == 1
    assert rollouts["agents", "decision"].unique().tolist() == [0, 1, 2]


class CustomStatistics(VanillaPpoTrainer):
    """Also logs the verifier's mean reward, computed from the rollouts, and its inputs."""

    def _get_log_stats(self, rollouts, mean_loss_vals=None, *, train=True):
        stats = super()._get_log_stats(rollouts, mean_loss_vals, train=train)
        self.seen = rollouts
        prefix = "" if train else "test_"
        reward = rollouts["next", "agents", "reward"][..., self.agent_names.index("verifier")]
        ends = rollouts["next", "done"] | rollouts["next", "terminated"]
        return stats | {f"{prefix}mine": float(reward.sum() / ends.sum()), f"{prefix}train": train}


@pytest.mark.parametrize("frames", [12, 32])
def test_custom_statistics_of_tests_are_computed_from_the_episodes_that_count(tiny, frames):
    changes = {"rl__num_test_iterations": 2, "rl__frames_per_batch": frames}
    _, plain = _tested(tiny, **changes)
    hyper_params = tiny.parameters(**changes)
    trainer = CustomStatistics(hyper_params, tiny.scenario(hyper_params), tiny.ExperimentSettings())
    trainer.initial_state()
    result = trainer.run_test()
    assert result.table == plain.table
    mine, from_train = result.metrics.pop("mine"), result.metrics.pop("train")
    assert result.metrics == plain.metrics, "the base's are unchanged by the override"
    rewards = plain.table["reward.verifier"]
    assert mine == pytest.approx(sum(rewards) / len(rewards))
    assert not from_train
    rounds = plain.table["rounds"]
    assert trainer.seen.batch_size == (1, sum(rounds))
    ids = trainer.seen["datapoint_id"][0].tolist()
    assert ids == [
        i
        for i, count in zip(plain.table["datapoint_id"], rounds, strict=True)
        for _ in range(count)
    ]


def test_custom_statistics_of_tests_are_recorded(tiny):
    hyper_params = tiny.parameters(rl__num_iterations=1)
    trainer = CustomStatistics(hyper_params, tiny.scenario(hyper_params), tiny.ExperimentSettings())
    trainer.train()
    tested = next(record for record in trainer.history if record.stage == "test")
    assert "test_mine" in tested.values
    assert tested.values["test_train"] == 0
    assert trainer._get_log_stats(trainer.seen, train=False).keys() >= {"test_mine", "test_train"}


def test_both_ways_are_two_tests_each_like_the_one_asked_for_alone(tiny):
    changes = {"rl__num_test_iterations": 100}
    trainer, likeliest = _tested(tiny, rl__test_by_sampling="both", **changes)
    assert likeliest == _tested(tiny, **changes)[1]
    sampled = _tested(tiny, rl__test_by_sampling=True, **changes)[1]
    assert trainer.run_test(sampled=True) == sampled != likeliest


def test_training_in_one_go_logs_both_accuracies_under_their_own_names(tiny):
    trainer = tiny.trainer(tiny.parameters(rl__test_by_sampling="both", rl__num_iterations=1))
    trainer.train()
    assert list(trainer.test_results) == ["test", "by-sampling"]
    logged = {record.stage: record.values for record in trainer.history}
    for stage, name in (("test", "test"), ("test.by-sampling", "by-sampling")):
        accuracy = trainer.test_results[name].metrics["accuracy"]
        assert logged[stage]["test_accuracy"] == accuracy
