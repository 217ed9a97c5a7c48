"""Several rollouts of each datapoint: their number, their datapoints, and their statistics."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ratchet.errors import ParameterError
from ratchet.language_models.estimates import estimate_experiment
from trainers.compatibility import check_combination
from trainers.registry import trainer_class
from trainers.text import plans
from trainers.text.plans import train_plan


def played(tiny_text, tmp_path, iteration=0, **changes):
    trainer = tiny_text.trainer(tiny_text.parameters(**changes))
    trainer.state = trainer.initial_state()
    return trainer, trainer.sample_rollouts(iteration, tmp_path / "calls.jsonl")


@pytest.mark.parametrize(("asked", "datapoints"), [(12, 4), (None, 8)])
def test_each_datapoint_of_an_iteration_is_played_as_often(tiny_text, tmp_path, asked, datapoints):
    trainer, (rollouts, usage) = played(
        tiny_text, tmp_path, text_rl__rollouts_per_datapoint=3, rl__rollouts_per_iteration=asked
    )
    counts = Counter(rollouts["datapoint_id"].tolist())
    assert sorted(counts.values()) == [3] * datapoints
    assert len(set(rollouts["seed"].tolist())) == 3 * datapoints
    told = rollouts["raw_message_history"].tolist()
    firsts = [rows for place, rows in enumerate(told) if place % 3 == 0]
    assert firsts != [rows for place, rows in enumerate(told) if place % 3 == 1]
    stats = trainer.compute_stats(0, rollouts)
    assert stats["rollouts_per_datapoint"] == 3
    kinds = ("always_failed", "sometimes_solved", "always_solved")
    assert sum(stats[f"{kind}_proportion"] for kind in kinds) == pytest.approx(1)
    assert stats["sometimes_solved_proportion"] > 0
    sizes = {"num_train": 8, "num_test": 4}
    estimate = estimate_experiment(trainer.hyper_params, type(trainer), **sizes).stages[0]
    assert usage.total.calls <= estimate.calls
    assert estimate.calls == 3 * len(rollouts)  # a call in each of three rounds


def test_one_of_each_is_what_it_always_was():
    once, thrice = train_plan(5, 1, 8, 6), train_plan(5, 1, 8, 6, 3)
    assert [rollout.datapoint_id for rollout in once] == [r.datapoint_id for r in thrice[::3]]
    assert train_plan(5, 1, 8, 6, 1) == once
    taken = [r.datapoint_id for i in range(4) for r in train_plan(5, i, 8, 6, 2)]
    assert np.bincount(taken).tolist() == [6] * 8  # all equally often, over all iterations


def test_tests_play_as_many_datapoints_as_training_not_as_many_rollouts(tiny_text, tmp_path):
    trainer, _ = played(
        tiny_text,
        tmp_path,
        text_rl__rollouts_per_datapoint=4,
        text_rl__test_on_whole_dataset=False,
        rl__rollouts_per_iteration=8,
    )
    rollouts, *_ = trainer.test(0, tmp_path / "test.jsonl")
    assert len(rollouts) == 2


@pytest.mark.parametrize(("whole", "datapoints"), [(True, 4), (False, 2)])
def test_a_test_plays_each_datapoint_as_often_as_asked(tiny_text, tmp_path, whole, datapoints):
    """It distinguishes consistent from occasional failures."""
    changes = {"text_rl__test_rollouts_per_datapoint": 8, "rl__rollouts_per_iteration": 2}
    trainer, _ = played(tiny_text, tmp_path, text_rl__test_on_whole_dataset=whole, **changes)
    rollouts, stats, usage = trainer.test(0, tmp_path / "test.jsonl")
    assert sorted(Counter(rollouts["datapoint_id"].tolist()).values()) == [8] * datapoints
    assert len(set(rollouts["seed"].tolist())) == 8 * datapoints
    assert stats["test_rollouts_per_datapoint"] == 8
    assert stats["test_sometimes_solved_proportion"] > 0
    stages = estimate_experiment(trainer.hyper_params, type(trainer), num_train=8, num_test=4)
    estimate = stages.stages[-1]
    assert estimate.stage == "test"
    assert estimate.calls == 3 * len(rollouts) >= usage.total.calls


def test_a_test_of_one_of_each_is_what_it_always_was():
    once, thrice = plans.test_plan(5, 8, 6, 1), plans.test_plan(5, 8, 6, 3)
    assert [rollout.datapoint_id for rollout in once] == [r.datapoint_id for r in thrice[::3]]
    assert len({rollout.seed for rollout in thrice}) == len(thrice) == 18


def test_a_number_that_does_not_come_out_even_is_refused_before_anything_is_built(tiny_text):
    hyper_params = tiny_text.parameters(
        rl__rollouts_per_iteration=8, text_rl__rollouts_per_datapoint=3
    )
    with pytest.raises(ParameterError, match=r"got 8, expected a multiple of .*, 3"):
        check_combination(hyper_params)


CUSTOM = """
from trainers.text.malt import PureTextMaltTrainer

class Bushy(PureTextMaltTrainer):
    @classmethod
    def responses_per_step(cls, hyper_params):
        return 3
"""


def test_a_trainer_from_a_file_samples_the_trees_that_are_estimated(tiny_text, tmp_path):
    (tmp_path / "bushy.py").write_text(CUSTOM)
    hyper_params = tiny_text.parameters(
        trainer={"module_path": str(tmp_path / "bushy.py"), "class_name": "Bushy"},
        rl__rollouts_per_iteration=2,
        protocol_common__verifier_no_guess_reward=0.0,
    )
    found = trainer_class(hyper_params, tmp_path)
    trainer = tiny_text.trainer(hyper_params, found=found)
    trainer.state = trainer.initial_state()
    rollouts, usage = trainer.sample_rollouts(0, tmp_path / "calls.jsonl")
    first = estimate_experiment(hyper_params, found, 8, 4).stages[0]
    assert first.calls == 2 * (3 + 9 + 27)
    assert usage.total.calls > 2 * 3
    children = {tuple(rows) for rows in rollouts["node_id"][:, :1].tolist()}
    assert len(children) == 2 * 3  # each tree starts with three replies
