"""Groups of rollouts: their tokens as read and written, their names, seeds, ends and failures."""

from collections import defaultdict

import pytest

from ratchet.errors import DataError, RolloutError, TaskCodeError
from ratchet.language_models.types import ChatMessage
from ratchet.plugins import load_module
from ratchet.scenarios.language_task.environments.base import (
    LanguageEnvironment,
    PlainEpisode,
    SingleTurn,
    Turn,
)
from ratchet.scenarios.language_task.evaluators import ExactMatch, FunctionEvaluator
from ratchet.scenarios.language_task.rollout_generation import (
    MinimumSuccesses,
    ModelPlayer,
    Retry,
    Rules,
    Sampling,
    play,
)
from ratchet.scenarios.language_task.task import Evaluation, Task
from ratchet.scenarios.language_task.transcripts import task_transcripts

TASKS = [Task("abc", "abc=", "cba"), Task("aab", "aab=", "baa")]


def backwards(prompt, request):
    return prompt.rstrip("=")[::-1]


@pytest.fixture
def played(tokenizer, engine_saying):
    """Generate rollouts; defaults are those of the simplest case."""

    def run(
        reply=backwards, tasks=TASKS, environment=None, evaluator=None, rules=None, most=20, **more
    ):
        evaluator = ExactMatch() if evaluator is None else FunctionEvaluator(evaluator)
        engine = engine_saying(reply)
        given = {"group_size": 2, "iteration": 3, "seed": 5, **more}
        sampling = Sampling(most, temperature=0.5, top_p=0.9)
        found = play(
            tasks,
            players={given.pop("agent", "agent"): ModelPlayer(engine, tokenizer, sampling)},
            rules=Rules(environment or SingleTurn(), evaluator, **(rules or {})),
            **given,
        )
        return found, engine

    return run


def test_groups_of_a_task_have_one_name_and_each_answer_its_own(played):
    found, engine = played()
    names = [(t.group_id, t.attempt_id, t.task_id) for t in found.trajectories]
    assert names == [(f"3/{t}", f"3/{t}/{i}", t) for t in ("abc", "aab") for i in range(2)]
    assert all(t.run_id == t.group_id for t in found.trajectories), "a run has all attempts"
    assert len(engine.asked) == 1, "all at once"
    assert [t.reward for t in found.trajectories] == [1.0] * 4
    assert [t.get("exact_match") for t in found.trajectories] == [1.0] * 4
    assert found.metrics["rollout/reward"] == found.metrics["rollout/turns"] == 1.0
    assert {t.num_written for t in found.trajectories} == {4}, "three letters and the end"
    assert {t.num_prompt for t in found.trajectories} == {4}
    assert found.metrics["rollout/num_rollouts"] == found.metrics["rollout/num_trajectories"] == 4


def test_a_task_that_comes_again_has_a_group_of_its_own(played):
    found, _ = played(tasks=[TASKS[0], TASKS[0]], attempt=2)
    assert [t.group_id for t in found.trajectories[::2]] == ["3.2/abc", "3.2/abc#1"]
    assert len({t.attempt_id for t in found.trajectories}) == 4


def test_tokens_are_what_was_read_and_written(played, tokenizer):
    found, engine = played(is_validation=True, model_version=7, agent="me")
    first = found.trajectories[0]
    assert first.tokens == [
        *tokenizer.encode("abc="),
        *tokenizer.encode("cba"),
        tokenizer.end_ids[0],
    ]
    assert first.loss_mask == [0] * 4 + [1] * 4
    assert first.logprobs == [0.0] * 4 + [-0.25, -0.5, -0.75, -1.0]
    assert (first.finish_reason, first.is_truncated) == ("stop", False)
    assert (first.is_validation, first.model_version, first.agent) == (True, 7, "me")
    request = engine.asked[0][0]
    assert (request.temperature, request.top_p, request.max_tokens) == (0.5, 0.9, 20)


def seeds(engine):
    return {
        (engine.tokenizer.decode(r.prompt)[:3], n): r.seed for n, r in enumerate(engine.asked[0])
    }


def test_a_rollouts_seed_does_not_depend_on_who_plays_beside_it(played):
    together = seeds(played()[1])
    alone = seeds(played(tasks=TASKS[:1])[1])
    larger = seeds(played(tasks=TASKS[:1], group_size=3)[1])
    assert alone.items() <= together.items()
    assert alone.items() <= larger.items()
    assert len(set(together.values())) == 4


@pytest.mark.parametrize(
    "change",
    [{"iteration": 4}, {"seed": 6}, {"agent": "b"}, {"is_validation": True}, {"attempt": 1}],
)
def test_a_rollouts_seed_depends_on_where_it_is_played(played, change):
    assert not set(seeds(played()[1]).values()) & set(seeds(played(**change)[1]).values())


def test_what_is_too_long_is_cut_off_before_it_is_scored(played):
    seen = []

    def score(task, completion, messages):
        seen.append((completion, messages[-1].content))
        return float(len(completion))

    found, engine = played(evaluator=score, rules={"max_sequence_length": 6}, group_size=1)
    assert engine.asked[0][0].max_tokens == 2
    assert seen == [("cb", "cb"), ("ba", "ba")]
    for trajectory in found.trajectories:
        assert len(trajectory) == 6
        assert (trajectory.is_truncated, trajectory.finish_reason) == (True, "length")
        assert trajectory.reward == 2.0


def test_an_engine_that_writes_more_than_asked_is_cut_too(played, monkeypatch, engine_saying):
    kind = type(engine_saying(backwards))
    whole = kind._complete
    import dataclasses

    monkeypatch.setattr(
        kind, "_complete", lambda self, r: whole(self, dataclasses.replace(r, max_tokens=99))
    )
    found, _ = played(rules={"max_sequence_length": 6})
    assert {len(t) for t in found.trajectories} == {6}
    assert all(t.is_truncated for t in found.trajectories)


def test_a_reply_that_reaches_its_own_bound_is_cut_off(played):
    found, _ = played(most=3)
    assert all(t.is_truncated and t.num_written == 3 for t in found.trajectories)
    assert all(t.reward == 1.0 for t in found.trajectories), "the truncated answer is correct"


def test_a_prompt_without_room_for_a_reply_is_an_error(played):
    with pytest.raises(
        DataError, match=r"'abc': its prompt has 4 tokens.*max_sequence_length of 4"
    ):
        played(rules={"max_sequence_length": 4})


def test_a_chat_is_written_by_its_template(played, tokenizer):
    found, _ = played(
        lambda prompt, request: "cba", rules={"chat": True, "system_prompt": "turn it"}
    )
    messages = [ChatMessage("system", "turn it"), ChatMessage("user", "abc=")]
    assert found.trajectories[0].tokens[:-4] == tokenizer.prompt_ids(messages)
    custom = Task("custom", (ChatMessage("system", "s"), ChatMessage("user", "u")), "cba")
    found, _ = played(
        lambda prompt, request: "cba", [custom], rules={"chat": True, "system_prompt": "turn it"}
    )
    assert found.trajectories[0].tokens[:-4] == tokenizer.prompt_ids(custom.prompt)


# -- many turns ------------------------------------------------------------------------------


class Guess(PlainEpisode):
    """Responds whether a digit is too small or too large, up to three times."""

    def answer(self, reply):
        self.said.append(reply)
        if reply == self.task.answer:
            return Turn((ChatMessage("user", "yes"),), done=True)
        word = "more" if reply < self.task.answer else "less"
        return Turn((ChatMessage("user", f" {word}:"),))

    def metrics(self):
        return {"guesses": float(len(self.said))}


class Guessing(LanguageEnvironment):
    def begin(self, task, seed):
        return Guess(task)


NUMBERS = [Task(f"n{i}", f"guess {i}?", i) for i in "147"]


def count_up(prompt, request):
    """Guess 1, and 3 more each time that this is too little."""
    return str(1 + 3 * prompt.count("more"))


@pytest.mark.parametrize("chat", [False, True])
def test_turns_are_appended_and_never_tokenized_again(played, tokenizer, chat):
    found, engine = played(count_up, NUMBERS, Guessing(), rules={"chat": chat}, group_size=1)
    assert [len(asked) for asked in engine.asked] == [3, 2, 1], "one call per turn"
    assert [t.metrics["guesses"] for t in found.trajectories] == [1, 2, 3]
    assert [t.finish_reason for t in found.trajectories] == ["environment"] * 3
    assert [t.reward for t in found.trajectories] == [1.0] * 3
    last = found.trajectories[2]
    end = tokenizer.end_ids[0]
    for earlier, later in zip(engine.asked, engine.asked[1:], strict=False):
        assert later[-1].prompt[: len(earlier[-1].prompt)] == earlier[-1].prompt
    written = [t for t, mask in zip(last.tokens, last.loss_mask, strict=True) if mask]
    assert written == [i for n in "147" for i in (*tokenizer.encode(n), end)]
    whole = [
        ChatMessage("user", "guess 7?"),
        ChatMessage("assistant", "1"),
        ChatMessage("user", " more:"),
        ChatMessage("assistant", "4"),
        ChatMessage("user", " more:"),
    ]
    expected = (
        tokenizer.prompt_ids(whole)
        if chat
        else [
            *(*tokenizer.encode("guess 7?1"), end, *tokenizer.encode(" more:4"), end),
            *tokenizer.encode(" more:"),
        ]
    )
    assert last.tokens[:-2] == expected, "as if the conversation were encoded together"
    assert last.metrics["num_turns"] == 3


def test_turns_end_where_the_experiment_says(played):
    found, engine = played(count_up, NUMBERS, Guessing(), rules={"max_turns": 2}, group_size=1)
    assert len(engine.asked) == 2
    assert [t.finish_reason for t in found.trajectories] == ["environment", "stop", "stop"]
    assert [t.reward for t in found.trajectories] == [1.0, 1.0, 0.0]


def test_an_answer_that_leaves_no_room_ends_the_episode(played):
    found, _ = played(
        count_up, NUMBERS[2:], Guessing(), rules={"max_sequence_length": 16}, group_size=1
    )
    (trajectory,) = found.trajectories
    assert (trajectory.finish_reason, len(trajectory)) == ("length", 10)
    assert trajectory.reward == 0.0


class Forgetful(LanguageEnvironment):
    """Replaces the conversation by the model's last reply."""

    def begin(self, task, seed):
        class Rewriting(PlainEpisode):
            def answer(self, reply):
                self.said.append(reply)
                return Turn((ChatMessage("user", f"{reply}+"),), history=())

        return Rewriting(task)


def test_a_rewritten_history_gives_several_trajectories_of_one_run(played, tokenizer):
    replies = {"abc=": "x", "x+": "y", "y+": "cba"}
    found, _ = played(
        lambda prompt, request: replies[prompt],
        TASKS[:1],
        Forgetful(),
        rules={"max_turns": 3},
        group_size=1,
    )
    texts = [tokenizer.decode(t.tokens) for t in found.trajectories]
    assert texts == ["abc=x", "x+y", "y+cba"]
    assert {t.attempt_id for t in found.trajectories} == {"3/abc/0"}
    assert {t.reward for t in found.trajectories} == {1.0}, "the conversation's reward"
    assert found.metrics["rollout/num_rollouts"] == 1
    assert found.metrics["rollout/num_trajectories"] == 3


# -- transcripts -----------------------------------------------------------------------------


def test_transcripts_have_a_groups_answers_beside_each_other(played, tokenizer):
    def reply(prompt, request):
        return backwards(prompt, request) if request.seed % 2 else "zz"

    found, _ = played(reply, TASKS[::-1], group_size=4)
    written = task_transcripts(found.trajectories, TASKS, {"agent": tokenizer})
    assert [one["datapoint_id"] for one in written] == [0] * 4 + [1] * 4
    assert [one["task_id"] for one in written] == ["abc"] * 4 + ["aab"] * 4
    assert len({one["rollout"] for one in written}) == 8
    for one in written:
        (round_,) = one["rounds"]
        (message,) = round_["messages"]
        right = one["question"].rstrip("=")[::-1]
        assert (one["solution"], message["agent"]) == (right, "agent")
        assert one["correct"] == (message["text"] == right) == (one["rewards"]["agent"] == 1.0)
        rewards = [e["rewards"]["agent"] for e in written if e["task_id"] == one["task_id"]]
        reward = one["rewards"]["agent"]
        assert message["credit"] == pytest.approx(reward - (sum(rewards) - reward) / 3)
        done = [each["correct"] for each in written if each["task_id"] == one["task_id"]]
        assert one["always_failed"] == (not any(done))
    assert {one["correct"] for one in written} == {True, False}


@pytest.mark.parametrize("chat", [False, True])
def test_transcripts_have_every_turn(played, tokenizer, chat):
    found, _ = played(count_up, NUMBERS[2:], Guessing(), rules={"chat": chat}, group_size=1)
    (one,) = task_transcripts(found.trajectories, NUMBERS, {"agent": tokenizer})
    assert (one["question"], one["datapoint_id"]) == ("guess 7?", 2)
    said = [[m["agent"] for m in each["messages"]] for each in one["rounds"]]
    assert said == [["agent"], ["environment", "agent"], ["environment", "agent"]]
    assert [each["messages"][-1]["text"] for each in one["rounds"]] == ["1", "4", "7"]
    assert all("more:" in each["messages"][0]["text"] for each in one["rounds"][1:])


def test_a_transcript_of_a_rewritten_conversation_is_one(played, tokenizer):
    replies = {"abc=": "x", "x+": "cba"}
    found, _ = played(
        lambda prompt, request: replies[prompt],
        TASKS[:1],
        Forgetful(),
        evaluator=lambda task, completion, messages: Evaluation(0.5, {"form": 0.25}),
        rules={"max_turns": 2},
        group_size=1,
    )
    (one,) = task_transcripts(found.trajectories, TASKS, {"agent": tokenizer})
    assert (one["correct"], one["always_failed"]) == (None, False), "the evaluator doesn't say"
    assert (one["rewards"], one["scores"]) == ({"agent": 0.5}, {"form": 0.25})
    texts = [[m["text"] for m in each["messages"]] for each in one["rounds"]]
    assert texts == [["x"], ["x+", "cba"]]


# -- scores and failures ---------------------------------------------------------------------


def test_parts_and_metrics_reach_trajectories(played):
    def score(task, completion, messages):
        return Evaluation(0.5, {"form": 1.0}, {"letters": len(completion)})

    found, _ = played(evaluator=score)
    assert found.trajectories[0].scores == {"form": 1.0}
    assert found.trajectories[0].get("letters") == 3


@pytest.mark.parametrize(
    ("scored", "what"),
    [
        (float("nan"), "reward = nan"),
        (float("inf"), "reward = inf"),
        ("much", "got str"),
        (None, "got NoneType"),
        (Evaluation(1.0, {"form": float("nan")}), r"parts\['form'\] = nan"),
        (Evaluation(1.0, metrics={"note": "text"}), r"metrics\['note'\] = 'text'"),
        (Evaluation(1.0, metrics={"reward": 9.0}), "metrics\\['reward'\\] .* 'rollout/reward'"),
        (Evaluation(1.0, metrics={"num_turns": 9.0}), "'rollout/num_turns'"),
        (Evaluation(1.0, metrics={"score/a": 9.0}), "'rollout/score/a'"),
        (Evaluation(1.0, {"num_datapoints": 9.0}), "parts.* 'test_num_datapoints'"),
        (Evaluation(1.0, metrics={"b.mean_episode_reward": 1}), "'test_b.mean_episode_reward'"),
        (Evaluation(1.0, {"a": 1.0}, {"a": 2.0}), "'a' names two values"),
    ],
)
def test_evaluations_that_are_refused_name_evaluator_and_task(played, scored, what):
    def odd(task, completion, messages):
        return scored

    with pytest.raises(DataError, match=what) as caught:
        played(evaluator=odd)
    assert "evaluator odd, task 'abc'" in str(caught.value)


def test_metrics_of_an_environment_replace_no_other(played, monkeypatch):
    """Neither Ratchet's nor those of the evaluator."""

    def score(task, completion, messages):
        return Evaluation(0.5, metrics={"letters": 1.0})

    for name, text in (("letters", "'letters' names two values"), ("turns", "'rollout/turns'")):
        monkeypatch.setattr(PlainEpisode, "metrics", lambda _, name=name: {name: 0.0})
        with pytest.raises(DataError, match=text) as caught:
            played(evaluator=score)
        assert "SingleTurn, task 'abc'" in str(caught.value)


def failing(places):
    """Return an evaluator that fails at these calls, counted from 0 for each task."""
    calls = defaultdict(int)

    def score(task, completion, messages):
        calls[task.task_id] += 1
        if calls[task.task_id] - 1 in places:
            raise OSError("no answer")
        return 1.0

    return score


def test_the_first_failure_ends_it_by_default(played):
    says = r"evaluator score, task 'abc': OSError: no answer \(.*test_roll\w+\.py:\d+ in .*\)"
    with pytest.raises(RolloutError, match=says) as caught:
        played(evaluator=failing({1}))
    assert caught.value.__notes__ == ["while playing the rollout 3/abc/1"]


def test_an_error_of_custom_code_names_it_and_is_not_raised_twice(played, tmp_path):
    (tmp_path / "rewards.py").write_text("def close(task, *_):\n    return 1 / 0\n")
    function = load_module("rewards.py", tmp_path).close
    says = (
        r"evaluator rewards.py:close, task 'abc': ZeroDivisionError: .*\(.*rewards.py:2 in close\)"
    )
    with pytest.raises(TaskCodeError, match=says) as caught:
        played(evaluator=function)
    assert isinstance(caught.value, DataError), "there is no second attempt"

    class Broken(SingleTurn):
        def begin(self, task, seed):
            raise KeyError("words")

    with pytest.raises(TaskCodeError, match="environment Broken, task 'abc': KeyError: 'words'"):
        played(environment=Broken())


def test_a_rollout_is_played_again_with_other_seeds(played):
    found, engine = played(evaluator=failing({1}), failure=Retry(2))
    assert [len(asked) for asked in engine.asked] == [4, 2]
    assert len(found.trajectories) == 4
    assert found.metrics["rollout/num_failures"] == 2
    assert found.metrics["rollout/num_dropped"] == 0
    first = {request.seed for request in engine.asked[0]}
    assert not first & {request.seed for request in engine.asked[1]}
    with pytest.raises(RolloutError, match="no answer"):
        played(evaluator=failing({0, 1, 2, 3}), failure=Retry(1))


def test_a_group_goes_on_with_enough_and_what_is_dropped_is_counted(played, tokenizer):
    found, _ = played(evaluator=failing({1}), group_size=3, failure=MinimumSuccesses(2))
    names = [t.attempt_id for t in found.trajectories]
    assert names == ["3/abc/0", "3/abc/2", "3/aab/0", "3/aab/2"]
    assert found.metrics["rollout/num_dropped"] == 2
    assert found.metrics["rollout/num_failures"] == 2
    with pytest.raises(DataError, match=r"group 3/abc: 2 of 3 rollouts failed, .* at least 2"):
        played(evaluator=failing({0, 1}), group_size=3, failure=MinimumSuccesses(2))


def test_an_engines_error_travels_whatever_the_policy(played):
    def broken(prompt, request):
        raise OSError("engine")

    with pytest.raises(OSError, match="engine"):
        played(broken, failure=MinimumSuccesses(1))
