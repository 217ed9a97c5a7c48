"""A test of a language model has a row for each completion, correct or not where known."""

from __future__ import annotations

from ratchet.rollouts.trajectory import Trajectory
from ratchet.tracking.result_table import ResultTable
from trainers.language.testing import summarise_answers

PLACES = {"ab": 0, "cd": 1, "ef": 2}


def answer(task, place=0, *, right=None, reward=0.5, written=2, **more):
    metrics = {} if right is None else {"exact_match": float(right)}
    return Trajectory(
        tokens=[1, *[2] * written],
        loss_mask=[0, *[1] * written],
        logprobs=[0.0, *[-1.0] * written],
        reward=reward,
        group_id=f"0/{task}",
        attempt_id=f"0/{task}/{place}",
        task_id=task,
        agent="agent",
        metrics={**metrics, **more},
    )


def test_an_evaluator_that_says_what_is_right_gives_a_column_of_it():
    found = summarise_answers(PLACES, [answer("ab", right=True), answer("cd", right=False)])
    assert found.table["correct"] == [1, 0]
    assert found.table["task_id"] == ["ab", "cd"]
    assert found.metrics["exact_match"] == 0.5
    assert ResultTable("test", found.table).columns["reward.agent"] == [0.5, 0.5]


def test_where_not_all_is_known_to_be_right_or_wrong_there_are_rewards_alone():
    for other in (answer("cd"), answer("cd", right=0.25)):
        found = summarise_answers(PLACES, [answer("ab", right=True), other])
        assert "correct" not in found.table
        assert len(ResultTable("test", found.table)) == 2


def test_an_evaluators_metrics_are_columns_under_their_names():
    answers = [answer("ab", acceptance=1.0, num_turns=2.0), answer("cd", num_turns=1.0)]
    found = summarise_answers(PLACES, answers)
    assert found.table["metric.acceptance"] == [1.0, None]
    assert "metric.num_turns" not in found.table
    exact = summarise_answers(PLACES, [answer("ab", right=True), answer("cd", right=False)])
    assert "metric.exact_match" not in exact.table, "the column correct has it"


def test_several_answers_to_a_task_are_rows_of_one_datapoint():
    answers = [answer(task, k, right=k == 0) for task in ("ab", "cd") for k in range(3)]
    found = summarise_answers(PLACES, answers)
    assert found.table["datapoint_id"] == [0, 0, 0, 1, 1, 1]
    assert found.table["correct"] == [1, 0, 0, 1, 0, 0]
    assert found.metrics["num_datapoints"] == 2
    assert len(ResultTable("test", found.table)) == 6


def test_answers_that_were_left_out_shift_no_others():
    found = summarise_answers(PLACES, [answer("ab", right=True), answer("ef", right=False)])
    assert found.table["datapoint_id"] == [0, 2]


def test_a_conversation_that_was_rewritten_counts_once():
    answers = [
        answer("ab", right=True, reward=1.0, written=3),
        answer("ab", right=True, reward=1.0, written=2),
        answer("cd", right=False, reward=0.0, written=1),
    ]
    found = summarise_answers(PLACES, answers)
    assert found.table["response_length"] == [5, 1]
    assert found.metrics["agent.mean_episode_reward"] == 0.5
    assert found.metrics["exact_match"] == 0.5


def test_metrics_and_parts_are_found_whatever_they_are_called():
    (one,) = [answer("ab", reward=2.0, tokens=3.0)]
    one.scores = {"reward": 0.5}
    metrics = summarise_answers(PLACES, [one]).metrics
    assert (metrics["tokens"], metrics["reward"]) == (3.0, 0.5)
