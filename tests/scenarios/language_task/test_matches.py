"""Matches of a game between language models: turns, engines, groups, rewards and ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ratchet import HyperParameters
from ratchet.algorithms.language.trajectories import batch_advantages, trajectory_advantages
from ratchet.errors import DataError, ParameterError, TaskCodeError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.plugins import load_class
from ratchet.rollouts.batch import Batch
from ratchet.rollouts.trajectory import Trajectory
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.language_task.parameters import LanguageTaskParameters
from ratchet.scenarios.language_task.rollout_generation import (
    MinimumSuccesses,
    ModelPlayer,
    Rules,
    Sampling,
    play,
)
from ratchet.scenarios.language_task.sources.matches import Matches
from ratchet.scenarios.language_task.task import Task
from ratchet.scenarios.language_task.transcripts import task_transcripts
from ratchet.seeding import numpy_generator
from tasks.stages.families import make_keys
from tests.scenarios.language_task.counting import Counting, CountingMatch
from trainers.language.grpo import GrpoTrainer
from trainers.language.testing import summarise_answers

EXAMPLE = Path(__file__).parents[3] / "examples/language/custom_game.py"
TASKS = [Task(f"m{n}", f"match {n}", info={"seed": n}) for n in range(3)]


@pytest.fixture
def played(tokenizer, engine_saying):
    def run(a="1", b="2", tasks=TASKS[:1], rules=None, game=None, max_tokens=3, **more):
        replies = zip("ab", (a, b), strict=True)
        engines = {n: None if r is None else engine_saying(answer(r)) for n, r in replies}
        players = {
            name: engine and ModelPlayer(engine, tokenizer, Sampling(max_tokens))
            for name, engine in engines.items()
        }
        options = {"group_size": 2, "iteration": 3, "seed": 5, **more}
        rules = Rules(game or Counting(), None, **(rules or {}))
        return play(tasks, players=players, rules=rules, **options), engines

    return run


def answer(reply):
    return reply if callable(reply) else lambda prompt, request: reply


def test_each_engine_is_called_once_a_turn_with_all_matches(played):
    found, engines = played(tasks=TASKS)
    assert [len(calls) for calls in engines["a"].asked] == [6, 6]  # 0 + 1 + 2 + 1 = 4
    assert [len(calls) for calls in engines["b"].asked] == [6]
    assert found.metrics["rollout/a/reward"] == 1.0
    assert found.metrics["rollout/b/reward"] == -1.0
    assert found.metrics["rollout/turns"] == 3.0


def test_seats_of_one_model_are_one_call_of_its_engine(tokenizer, engine_saying):
    engine = engine_saying(lambda prompt, request: "Keep")
    player = ModelPlayer(engine, tokenizer, Sampling(5))
    game = load_class(f"{EXAMPLE}:HighCard")()
    play(
        TASKS,
        players=dict.fromkeys(game.seats, player),
        rules=Rules(game, None),
        group_size=1,
        iteration=0,
        seed=0,
    )
    assert [len(calls) for calls in engine.asked] == [6], "both seats of three matches"


def test_a_seats_side_is_one_trajectory_of_what_it_saw_and_wrote(played, tokenizer):
    found, _ = played(group_size=1)
    first, second = found.trajectories
    end = tokenizer.end_ids[0]
    one, two, three, zero = (tokenizer.encode(digit)[0] for digit in "1230")
    assert first.tokens == [zero, one, end, three, one, end]
    assert first.loss_mask == [0, 1, 1, 0, 1, 1]
    assert second.tokens == [one, two, end]
    assert (first.agent, second.agent) == ("a", "b")
    assert (first.reward, second.reward) == (1.0, -1.0)
    assert (first.group_id, first.run_id) == ("3/m0/a", "3/m0")
    assert second.group_id == "3/m0/b"
    assert first.attempt_id == second.attempt_id == "3/m0/0"
    assert first.metrics == {"final_count": 4.0, "illegal_reply": 0.0, "num_turns": 2.0}
    assert {each.finish_reason for each in found.trajectories} == {"environment"}


def test_a_reply_that_names_no_action_ends_the_match_and_costs_its_seat(played):
    found, _ = played(b="7")
    sides = {each.agent: each for each in found.trajectories}
    assert (sides["a"].reward, sides["b"].reward) == (0.0, -5.0)
    assert (sides["a"].metrics["illegal_reply"], sides["b"].metrics["illegal_reply"]) == (0.0, 1.0)


def test_a_seat_without_a_model_acts_at_random_by_the_seed(played):
    found, _ = played(b=None, tasks=TASKS, group_size=4)
    again, _ = played(b=None, tasks=TASKS, group_size=4)
    assert {each.agent for each in found.trajectories} == {"a"}
    assert found == again
    assert len({each.reward for each in found.trajectories}) == 2
    alone, _ = played(b=None, tasks=TASKS[:1], group_size=1)
    assert alone.trajectories[0] == found.trajectories[0]


def test_a_seats_seeds_do_not_depend_on_the_other(played):
    _, both = played()
    _, alone = played(b=None, tasks=TASKS[:1])
    assert both["a"].asked[0] == alone["a"].asked[0]
    seeds = {request.seed for engine in both.values() for call in engine.asked for request in call}
    assert len(seeds) == 6


def test_matches_end_where_the_experiment_says(played):
    found, _ = played(b="1", rules={"max_turns": 1}, game=Counting(9))
    assert {each.finish_reason for each in found.trajectories} == {"stop"}
    assert {each.reward for each in found.trajectories} == {0.0}
    nobody, _ = played(a=None, b=None, rules={"max_turns": 1}, game=Counting(9))
    assert (nobody.trajectories, nobody.metrics["rollout/turns"]) == ([], 0.0), "it ends, too"
    cut, _ = played(b="1", rules={"max_sequence_length": 4}, game=Counting(9), group_size=1)
    assert [each.is_truncated for each in cut.trajectories] == [True, True]
    with pytest.raises(DataError, match="leaves no room for a reply"):
        played(rules={"max_sequence_length": 1})


def test_an_error_of_a_game_names_it_and_may_be_left_out(played):
    tasks = [*TASKS, Task("bad", "bad", info={"seed": 99})]
    with pytest.raises(
        TaskCodeError, match=r"game Counting, task 'bad': ZeroDivisionError: broken"
    ):
        played(tasks=tasks)
    found, _ = played(tasks=tasks, failure=MinimumSuccesses(0))
    assert found.metrics["rollout/num_dropped"] == 2


def test_an_illegal_reply_that_was_cut_off_is_too_long(played):
    found, _ = played(b="111", max_tokens=2)
    assert {each.finish_reason for each in found.trajectories} == {"length"}
    assert [each.metrics["illegal_reply"] for each in found.trajectories[:2]] == [0.0, 1.0]


class Unpaid(Counting):
    def begin(self, seed):
        match = CountingMatch(self.total, seed)
        match.metrics = lambda: {"final_count": float("nan")}
        return match


def test_numbers_of_a_match_are_checked(played):
    with pytest.raises(TaskCodeError, match=r"game Unpaid, task 'm0'.*final_count.*finite"):
        played(game=Unpaid())


def test_a_system_prompt_comes_first_for_each_seat(played, tokenizer):
    _found, engines = played(rules={"system_prompt": "go "}, group_size=1)
    for engine in engines.values():
        assert tokenizer.decode(engine.asked[0][0].prompt).startswith("go ")
    assert len(engines["a"].asked[1][0].prompt) == len(engines["a"].asked[0][0].prompt) + 3


def test_transcripts_show_each_seats_side(played, tokenizer):
    found, _ = played(group_size=1)
    tokenizers = dict.fromkeys("ab", tokenizer)
    alone, _ = played(group_size=1, b=None)
    (against_nobody,) = task_transcripts(alone.trajectories, TASKS, tokenizers)
    assert against_nobody["rounds"][0]["messages"][0]["text"] == "0", "what it saw first"
    (transcript,) = task_transcripts(found.trajectories, TASKS, tokenizers)
    assert transcript["rewards"] == {"a": 1.0, "b": -1.0}
    texts = [[m["text"] for m in each["messages"]] for each in transcript["rounds"]]
    assert [[text[0] for text in of_round] for of_round in texts] == [
        ["0", "1", "1", "2"],
        ["3", "1"],
    ]
    channels = [message["channel"] for message in transcript["rounds"][0]["messages"]]
    assert channels == ["a", "main", "b", "main"]


class Chased(Counting):
    """Seats draw who hides; the seeker pays for the match."""

    def begin(self, seed):
        roles = ("hider", "seeker") if seed % 2 else ("seeker", "hider")
        match = CountingMatch(self.total, seed)
        match.role = lambda seat: roles[self.seats.index(seat)]
        return match


def test_roles_are_drawn_for_each_match_and_have_averages(played, tokenizer):
    found, _ = played(tasks=TASKS, game=Chased())
    roles = {(each.task_id, each.agent): each.role for each in found.trajectories}
    assert roles["m0", "a"] == roles["m1", "b"] == "seeker"
    assert roles["m0", "b"] == roles["m1", "a"] == "hider"
    options = {"baseline": "agent_average", "scale": "none"}
    by_role = trajectory_advantages(found.trajectories, **options)
    # a wins all matches: twice as the seeker, once as the hider.
    assert by_role.agent_averages == pytest.approx({"seeker": 1 / 3, "hider": -1 / 3})
    batch = Batch.from_trajectories(found.trajectories, 0)
    assert batch_advantages(batch, **options).agent_averages == by_role.agent_averages
    assert batch.to_trajectories()[0].role == "seeker"
    trainer = GrpoTrainer({"grpo": {"baseline": "agent_average", "advantage_scale": "none"}})
    trainer._compute_advantage(batch)
    assert trainer._averages == by_role.agent_averages
    written = task_transcripts(found.trajectories, TASKS, dict.fromkeys("ab", tokenizer))
    assert written[0]["roles"] == {"a": "seeker", "b": "hider"}
    assert Trajectory.from_dict(found.trajectories[0].to_dict()) == found.trajectories[0]
    plain, _ = played()
    assert "role" not in plain.trajectories[0].to_dict()


def instance(tmp_path, text=None, **changes):
    (tmp_path / "game.py").write_text(EXAMPLE.read_text() if text is None else text)
    values = {
        "scenario": "language_task",
        "trainer": "grpo",
        "dataset": "game.py:HighCard",
        "language_task": {"num_train": 30, "num_test": 5},
        **changes,
    }
    hyper_params = HyperParameters.from_dict(values, str(tmp_path))
    return build_scenario_instance(hyper_params, ExperimentSettings(), base_dir=tmp_path)


def test_a_file_makes_a_game_with_its_seats_matches_and_demonstrations(tmp_path, tokenizer):
    warm_up = {"num_steps": 2, "batch_size": 32}
    made = instance(tmp_path, agents={"_default": {"warm_up": warm_up}})
    assert list(made.agents) == ["left", "right"]
    assert {name: len(data) for name, data in made.datasets.items()} == {"train": 30, "test": 5}
    seeds = [task.info["seed"] for data in made.datasets.values() for task in data]
    assert len(set(seeds)) == 35
    assert set("123KeepDraw") <= set(made.characters)
    shown = made.demonstrations(tokenizer)
    assert len(shown) == 60, "both seats act once in each of the training matches"
    few = instance(tmp_path, agents={"_default": {"warm_up": {"num_steps": 1, "batch_size": 8}}})
    assert len(few.demonstrations(tokenizer)) == 8, "as many as are used"
    replies = {tokenizer.decode(each.answer[:-1]) for each in shown}
    assert replies == {"eep", "raw"}, "the test's tokenizer has neither K nor D"


def test_a_function_acts_for_a_seat(tmp_path):
    made = instance(tmp_path, agents={"right": {"model": "game.py:equilibrium"}})
    played = made.play("train", range(30), {"left": lambda view: 0}, iteration=0)
    cards = [
        numpy_generator(int(task.info["seed"]), "deal").integers(1, 10, size=(2, 2))
        for task in made.datasets["train"]
    ]
    right = [own[0] if own[0] >= 6 else own[1] for _, own in cards]
    left = [own[0] for own, _ in cards]
    assert played.metrics["rollout/right/reward"] == np.sign(np.subtract(right, left)).mean()
    with pytest.raises(TaskCodeError, match=r"'left': its function chose 7, .*\{0: 'Keep'"):
        made.play("train", [0], {"left": lambda view: 7}, iteration=0)


@pytest.mark.slow
def test_the_code_of_a_function_is_in_the_keys(tmp_path):
    made = instance(tmp_path, agents={"right": {"model": "game.py:equilibrium"}})
    (tmp_path / "other.py").write_text(EXAMPLE.read_text())
    hyper_params = made.hyper_params.replace({"dataset": "other.py:HighCard"})

    def key():
        return make_keys("main", hyper_params, base_dir=str(tmp_path)).state_key(1)

    first = key()
    assert key() == first
    (tmp_path / "game.py").write_text(EXAMPLE.read_text().replace("< 6", "< 5"))
    assert key() != first


def test_a_demonstration_has_the_conversation_so_far():
    game = Counting(6)
    section = LanguageTaskParameters(max_turns=5)
    pairs = [*Matches(section, game).demonstrations(TASKS[0])]
    (messages, _), *_ = [each for each in pairs if len(each[0]) == 3]
    assert [message.role for message in messages] == ["user", "assistant", "user"]
    endless = Matches(section, Counting(10**9)).demonstrations(TASKS[0])
    assert len([*endless]) == 10, "five turns of each seat, as in training"


def test_a_game_has_its_own_rules_and_rewards(tmp_path):
    with pytest.raises(ParameterError, match="its own rules"):
        instance(tmp_path, language_task={"evaluator": "partial"})
    with pytest.raises(ParameterError, match=r"task_options: got \{'cards': 3\}"):
        instance(tmp_path, language_task={"task_options": {"cards": 3}})


@pytest.mark.parametrize("seats", ["()", '("a", "a")', '("../a", "b")'])
def test_seats_have_different_names_that_can_be_folders(tmp_path, seats):
    text = EXAMPLE.read_text().replace('("left", "right")', seats)
    with pytest.raises(ParameterError, match="has the seats"):
        instance(tmp_path, text)


class Folding(Counting):
    """In all matches but the first, one action ends it before the second seat acts."""

    def begin(self, seed):
        return CountingMatch(4 if seed == 0 else 1, seed)


def test_a_seat_is_paid_in_matches_in_which_it_never_acts(played):
    found, _ = played(game=Folding(), tasks=TASKS, group_size=1, is_validation=True)
    assert [each.agent for each in found.trajectories] == ["a", "b", "a", "a"]
    result = summarise_answers({"m0": 0, "m1": 1, "m2": 2}, found.trajectories, ("a", "b"))
    assert result.table["reward.b"] == [-1.0, -1.0, -1.0]
    assert result.metrics["b.mean_episode_reward"] == -1.0
    assert result.metrics["b.num_turns"] == 1.0, "of the match in which it acts"
