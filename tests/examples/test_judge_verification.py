"""experiments/judge_verification.py: the edits, and the metrics of judges that follow a rule."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from experiments.judge_verification import (
    STEPS,
    JudgeVerification,
    edited_program,
    inverted_marks,
)
from ratchet.parameters.base import SubParameters
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.scenarios.code_validation.generator.level0 import solution_of
from ratchet.scenarios.code_validation.tiny_model.players import Skill, argue, draw_exercise
from ratchet.scenarios.pure_text.episode import Position, SentMessage
from trainers import Moment

FLAWLESS = Skill(mark_errors=(0.0,), follows=1.0)


def position_of(seed):
    rng = np.random.default_rng(seed)
    exercise = draw_exercise(rng)
    text = argue(rng, exercise, FLAWLESS)
    message = SentMessage(0, "prover_channel", "prover", text)
    return Position(seed, seed, 0, exercise.question, exercise.solution, 1, (message,))


def is_right(position):
    steps = tuple(STEPS[line] for line in position.question.splitlines() if line in STEPS)
    return position.solution == solution_of(steps)


@pytest.mark.parametrize("seed", range(40))
def test_an_edited_program_has_the_other_label_and_the_same_arguments(seed):
    position = position_of(seed)
    edited = edited_program(position)
    assert is_right(edited) != is_right(position)
    assert edited.question == position.question
    assert edited.messages == position.messages
    assert edited_program(position) == edited


@pytest.mark.parametrize("seed", range(40))
def test_inverted_marks_support_the_other_decision(seed):
    position = position_of(seed)
    inverted = inverted_marks(position)
    assert ("differ" in inverted.messages[0].text) == is_right(position)
    assert inverted.solution == position.solution


def test_a_question_that_is_no_list_of_steps_is_refused():
    with pytest.raises(ValueError, match="datapoint 3: the question is no list of steps"):
        edited_program(Position(3, 3, 0, "Sort the list.", "def solve(x): ..."))


def verifies(position):
    return int(is_right(position))


def trusts(position):
    return int("differ" not in position.messages[0].text)


@pytest.mark.parametrize(("judge", "verification", "trust"), [(verifies, 1, 0), (trusts, 0, 1)])
def test_the_metrics_of_judges_that_verify_and_that_trust(judge, verification, trust):
    positions = [position_of(seed) for seed in range(40)]
    decisions = [[[2, 2], [2, judge(position)]] for position in positions]
    rollouts = NestedArrayDict(
        {
            "y": np.array([is_right(position) for position in positions]),
            "message_history": np.array(
                [[[p.messages[0].text], [None]] for p in positions], dtype=object
            ),
            "agents": {"decision": np.array(decisions)},
        },
        40,
    )
    trainer = SimpleNamespace(
        agent_names=("prover", "verifier"),
        protocol_handler=SimpleNamespace(verifier_names=["verifier"]),
        replay_last_turns=lambda _, agent, edit, name: [
            SimpleNamespace(decision=judge(edit(position))) for position in positions
        ],
    )
    callback = JudgeVerification(SubParameters(), trainer)
    metrics = callback.end_stage(Moment(0, "test", {}, rollouts=rollouts))
    assert metrics["test_verification"] == verification
    assert metrics["test_trust"] == trust
    assert metrics["test_true_arguments"] == 1
