"""Protocols of experiments/debaters.py: rewards and observations of each agent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments.debaters import argued_decision
from ratchet.experiment_files.loading import load_experiment
from ratchet.protocols.registry import build_protocol_handler
from ratchet.scenarios.pure_text.rules import rules_of

FILE = Path(__file__).parents[2] / "experiments" / "debaters.yaml"
SAME, DIFFERENT = "add + same 4 4 same", "add + same 4 5 differ"


def handler_of(arm):
    hyper_params = load_experiment(FILE).arms[arm]
    return build_protocol_handler(hyper_params, base_dir=FILE.parent)


@pytest.mark.parametrize(("argument", "decision"), [(SAME, 1), (DIFFERENT, 0)])
def test_the_marks_of_an_argument_are_its_side(argument, decision):
    assert argued_decision(argument) == decision
    open_consultancy = rules_of(handler_of("open_consultancy"))
    stance = open_consultancy.argued_stance(1, "prover", argument)
    assert open_consultancy.stance_of("prover", stance) == decision
    open_debate = rules_of(handler_of("open_debate"))
    stance = open_debate.argued_stance(1, "prover0", argument)
    assert open_debate.stance_of("prover0", stance) == decision
    assert open_debate.stance_of("prover1", stance) == 1 - decision


@pytest.mark.parametrize("arm", ["open_debate", "proposer_critic"])
def test_debaters_do_not_see_each_others_arguments(arm):
    sees = handler_of(arm).agent_channel_visibility
    assert ("prover0", "prover1_channel") not in sees
    assert ("prover1", "prover0_channel") not in sees
    assert {("verifier", "prover0_channel"), ("verifier", "prover1_channel")} <= sees


@pytest.mark.parametrize("y", [0, 1])
@pytest.mark.parametrize("decision", [0, 1])
def test_a_critic_is_rewarded_for_correct_decisions(decision, y):
    handler = handler_of("proposer_critic")
    outcome = handler.judge(
        1, 0, torch.tensor(y), torch.tensor(decision), ended=torch.tensor(False)
    )
    critic, proposer, judge = handler.rewards(outcome, torch.tensor(y)).tolist()
    assert critic == judge
    assert (judge > 0) == (decision == y)
    assert (proposer > 0) == (decision == 1)
