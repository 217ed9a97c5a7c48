"""Turns of matches are sampled again; the estimate of the gradient has the exact expectation."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from ratchet.algorithms.language.metrics import log_rollout_metrics
from ratchet.algorithms.language.trajectories import trajectory_advantages
from ratchet.errors import DataError, RolloutError
from ratchet.games.match import View
from ratchet.language_models.types import ChatMessage
from ratchet.scenarios.language_task.rollout_generation import (
    MinimumSuccesses,
    ModelPlayer,
    Retry,
    Rules,
    Sampling,
    play,
)
from ratchet.scenarios.language_task.task import Task
from ratchet.scenarios.language_task.transcripts import task_transcripts
from ratchet.seeding import numpy_generator
from tests.scenarios.language_task.counting import Counting, CountingMatch

REDRAWS = {"a": 2, "b": 1}
TOTAL = 5
ADDS_ONE = {("a", 0): 0.7, ("b", 1): 0.4, ("b", 2): 0.5, ("a", 2): 0.6, ("a", 3): 0.2}
"""Probability that a seat replies "1" at a count; 0.3 at others."""


def sampled_reply(prompt, request):
    """Reply by the request's seed with the probabilities of the seat that sees the last count."""
    seat, count = prompt[-2], int(prompt[-1])
    chance = ADDS_ONE.get((seat, count), 0.3)
    return "1" if numpy_generator(request.seed, "reply").random() < chance else "2"


class NamedCounting(Counting):
    """Says in each message whose turn it is."""

    def begin(self, seed):
        return NamedMatch(self.total, seed)

    def characters(self):
        return "ab0123456789"


class NamedMatch(CountingMatch):
    def view(self, seat):
        return View((ChatMessage("user", f"{seat}{self.count}"),), {1: "1", 2: "2"})


@pytest.fixture
def played(tokenizer, engine_saying):
    def run(redraws=REDRAWS, num_tasks=4, game=None, reply=sampled_reply, **options):
        engines = {seat: engine_saying(reply) for seat in Counting.seats}
        found = play(
            [Task(f"m{n}", f"match {n}", info={"seed": n}) for n in range(num_tasks)],
            players={n: ModelPlayer(e, tokenizer, Sampling(3)) for n, e in engines.items()},
            rules=Rules(game or NamedCounting(TOTAL), None),
            **{"group_size": 2, "iteration": 0, "seed": 0, "redraws": redraws, **options},
        )
        return found, engines

    return run


def written(trajectory):
    return [
        token for token, mask in zip(trajectory.tokens, trajectory.loss_mask, strict=True) if mask
    ]


def is_draw(trajectory):
    return trajectory.metrics["redrawn"] == 1


def test_draws_of_a_turn_are_a_group_with_the_same_prefix(played):
    found, _ = played()
    plain, _ = played(redraws={})
    turns = sum(int(each.metrics["num_turns"]) for each in plain.trajectories)
    groups: dict[str, list] = {}
    for trajectory in found.trajectories:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    assert len(groups) == turns
    differing = 0
    for group in groups.values():
        first, *draws = group
        assert not is_draw(first)
        assert all(map(is_draw, draws))
        assert len(draws) == REDRAWS[first.agent]
        for draw in draws:
            assert draw.num_prompt == first.num_prompt
            assert draw.tokens[: draw.num_prompt] == first.tokens[: first.num_prompt]
            assert draw.run_id == first.run_id
            differing += written(draw) != written(first)
    assert differing > 5
    names = [each.attempt_id for each in found.trajectories if is_draw(each)]
    assert len(set(names)) == len(names), "a redrawn rollout learns from one reply"


def test_only_the_redrawn_turn_and_what_it_changes_is_asked_again(played):
    _, engines = played()
    for engine in engines.values():
        requests = Counter(itertools.chain.from_iterable(engine.asked))
        assert max(requests.values()) == 1
    by_seat = {seat: set(itertools.chain.from_iterable(e.asked)) for seat, e in engines.items()}
    plain, engines = played(redraws={})
    for seat, engine in engines.items():
        assert by_seat[seat] >= set(itertools.chain.from_iterable(engine.asked))
    assert plain.metrics["rollout/num_rollouts"] == 8


def test_later_turns_have_the_random_numbers_of_the_original(played):
    """There is one seed for each turn of an original, however often other turns are redrawn."""
    found, engines = played(redraws={"a": 3})
    requests = list(itertools.chain.from_iterable(engines["b"].asked))
    num_turns_of_b = 8 * 2  # at most, in eight matches
    assert len({request.seed for request in requests}) <= num_turns_of_b < len(requests)
    others = [each for each in found.trajectories if each.agent == "b"]
    assert others
    assert not any(map(is_draw, others)), "b learns from originals only"


def test_others_learn_from_the_mean_of_the_rollouts_that_share_their_reply(played):
    found, _ = played(redraws={"a": 2}, num_tasks=40, group_size=1)
    rewards: dict[str, dict[str, float]] = {}  # b's, by match and rollout
    for each in found.trajectories:
        if each.agent == "a":
            rewards.setdefault(each.task_id, {})[each.attempt_id] = -each.metrics["return.a"]
    turns: Counter[str] = Counter()
    of_b = [each for each in found.trajectories if each.agent == "b"]
    for reply in of_b:
        sharing = [
            reward
            for name, reward in rewards[reply.task_id].items()
            if name == reply.attempt_id
            or int(name.rpartition("/a.")[2].partition(".")[0]) > turns[reply.task_id]
        ]
        assert reply.reward == pytest.approx(np.mean(sharing))
        assert reply.group_id == f"0/{reply.task_id}/b"
        turns[reply.task_id] += 1
    assert any(reply.reward != reply.metrics["return.b"] for reply in of_b)


def test_transcripts_are_those_without_redraws(played, tokenizer):
    tasks = [Task(f"m{n}", f"match {n}", info={"seed": n}) for n in range(4)]
    tokenizers = dict.fromkeys(Counting.seats, tokenizer)
    plain, _ = played(redraws={}, group_size=1)
    expected = task_transcripts(plain.trajectories, tasks, tokenizers)
    for redraws in (REDRAWS, {"a": 1}, {"b": 1}):
        found, _ = played(redraws=redraws, group_size=1)
        written = task_transcripts(found.trajectories, tasks, tokenizers)
        messages = [
            m for each in written for of_round in each["rounds"] for m in of_round["messages"]
        ]
        for message in messages:
            is_redrawn = message["channel"] == "main" and message["agent"] in redraws
            assert (message.pop("credit", None) is not None) == is_redrawn
        assert written == expected


def test_the_credit_of_a_reply_is_its_reward_compared_with_its_draws(played, tokenizer):
    found, _ = played(redraws={"a": 2}, num_tasks=10, group_size=1)
    tasks = [Task(f"m{n}", f"match {n}", info={"seed": n}) for n in range(10)]
    written = task_transcripts(found.trajectories, tasks, dict.fromkeys("ab", tokenizer))
    draws: dict[str, list[float]] = {}
    for each in found.trajectories:
        if each.agent == "a":
            draws.setdefault(each.group_id, []).append(each.reward)
    rounds = [of_round for each in written for of_round in each["rounds"]]
    messages = [m for of_round in rounds for m in of_round["messages"] if "credit" in m]
    expected = [first - np.mean(others) for first, *others in draws.values()]
    assert [m["credit"] for m in messages] == pytest.approx(expected)
    assert any(expected)


def test_a_failed_draw_is_left_out_or_drawn_again(played):
    class Fragile(NamedCounting):
        """Breaks at a total of 6, which a draw may reach and most originals do not."""

        def begin(self, seed):
            match = NamedMatch(self.total, seed)
            apply = match.play

            def break_or_play(actions):
                apply(actions)
                if match.count == self.total + 1 and fails():
                    raise OSError("broken")

            match.play = break_or_play
            return match

    failures = iter([False] * 4 + [True] + [False] * 1000)

    def fails():
        return next(failures)

    found, _ = played(game=Fragile(TOTAL), failure=MinimumSuccesses(1))
    whole, _ = played()
    assert found.metrics["rollout/num_dropped"] == 1
    lost = {e.attempt_id for e in whole.trajectories} - {e.attempt_id for e in found.trajectories}
    assert len(lost) == 1

    failures = iter([False] * 4 + [True] + [False] * 1000)
    found, _ = played(game=Fragile(TOTAL), failure=Retry(1))
    assert found.metrics["rollout/num_failures"] == 1
    assert [e.attempt_id for e in found.trajectories] == [e.attempt_id for e in whole.trajectories]
    failures = iter([True] * 1000)
    with pytest.raises(RolloutError, match="broken"):
        played(game=Fragile(TOTAL))


@pytest.mark.slow
def test_means_are_those_of_the_originals(played):
    """Long rollouts are redrawn more often, so that a mean over all would be biased."""
    found, _ = played(redraws={"a": 3, "b": 2}, num_tasks=20)
    plain, _ = played(redraws={}, num_tasks=20)
    for name in ("rollout/a/reward", "rollout/b/reward", "rollout/turns"):
        assert found.metrics[name] == plain.metrics[name]
    assert found.metrics["rollout/num_rollouts"] > 3 * plain.metrics["rollout/num_rollouts"]
    metrics: dict[str, float] = {}
    log_rollout_metrics([each for each in found.trajectories if each.agent == "a"], metrics)
    assert metrics["critic/score/mean"] == pytest.approx(
        np.mean([e.reward for e in found.trajectories if e.agent == "a" and not is_draw(e)])
    )


def test_a_game_that_does_not_repeat_itself_is_refused(played):
    begun = itertools.count()

    class Restless(NamedCounting):
        """Sees another seed in each match."""

        def begin(self, seed):
            match = NamedMatch(self.total, seed)
            match.count = next(begun) % 2
            return match

    with pytest.raises(DataError, match=r"before its turn 0 differs .*function of its seed"):
        played(game=Restless(TOTAL), group_size=1)


def exact_gradient(agent):
    """Return the gradient of a seat's expected reward in the log-odds of its replies, by count."""

    def value(seat, count):
        """Return a's expected reward from here, and the gradient by (seat, count)."""
        if count >= TOTAL:
            return (-1.0 if seat == "a" else 1.0), Counter()  # the seat before has won
        chance = ADDS_ONE.get((seat, count), 0.3)
        other = "b" if seat == "a" else "a"
        (one, of_one), (two, of_two) = value(other, count + 1), value(other, count + 2)
        gradient = Counter()
        for part, weight in ((of_one, chance), (of_two, 1 - chance)):
            for key, number in part.items():
                gradient[key] += weight * number
        gradient[seat, count] += chance * (1 - chance) * (one - two)
        return chance * one + (1 - chance) * two, gradient

    sign = 1 if agent == "a" else -1
    _, gradient = value("a", 0)
    return {key: sign * number for key, number in gradient.items() if key[0] == agent}


@pytest.mark.parametrize("redraws", [{"a": 1, "b": 2}, {"b": 1}])
def test_the_estimate_has_the_exact_gradient_as_its_expectation(played, tokenizer, redraws):
    num_matches = 600
    found, _ = played(redraws=redraws, num_tasks=num_matches, group_size=1)
    one = tokenizer.encode("1")[0]
    for agent, number in redraws.items():
        draws = [each for each in found.trajectories if each.agent == agent]
        advantages = trajectory_advantages(draws, baseline="leave_one_out", scale="none").advantage
        estimates: dict[tuple, np.ndarray] = {}
        for trajectory, advantage in zip(draws, advantages.tolist(), strict=True):
            prompt = tokenizer.decode(trajectory.tokens[: trajectory.num_prompt])
            key = agent, int(prompt[-1])
            score = (written(trajectory)[0] == one) - ADDS_ONE.get(key, 0.3)
            match = int(trajectory.task_id[1:])
            estimates.setdefault(key, np.zeros(num_matches))[match] += (
                advantage * score / (1 + number)
            )
        exact = exact_gradient(agent)
        assert estimates.keys() == exact.keys()
        for key, values in estimates.items():
            error = values.std() / num_matches**0.5
            assert abs(values.mean() - exact[key]) <= 4 * error, key
