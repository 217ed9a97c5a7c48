"""The example of a user's protocol runs, and its numbers are those of its rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.plugins import load_module
from ratchet.protocols import build_protocol_handler

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_protocol.py"


def test_example_prints_the_mean_rewards_of_random_play(capsys) -> None:
    load_module(EXAMPLE).main()
    printed = dict(line.split(":") for line in capsys.readouterr().out.splitlines())
    rewards = {name.strip(): float(value) for name, value in printed.items()}
    # It decides with chance 2/3 in each of two turns, so 8/9 of the games; half of them right.
    assert rewards["prover0"] == pytest.approx(4 / 9, abs=0.03)
    assert rewards["prover1"] == pytest.approx(4 / 9, abs=0.03)
    assert rewards["verifier"] == pytest.approx(-1 / 9, abs=0.05)


def test_example_can_be_named_by_its_path(make_parameters) -> None:
    hyper_params = make_parameters("examples/custom_protocol.py:CrossExamination")
    handler = build_protocol_handler(hyper_params, base_dir=EXAMPLE.parents[1])
    assert handler.max_verifier_questions == 2
