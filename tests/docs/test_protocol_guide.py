"""The guide's tables of protocols and rewards agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ratchet.parameters import HyperParameters
from ratchet.parameters.protocols import ProtocolCommonParameters
from ratchet.protocols import build_protocol_handler
from ratchet.protocols.base import SingleVerifierProtocolHandler
from ratchet.protocols.registry import PROTOCOLS

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "protocols.md").read_text()
ROWS = {
    name: [cell.strip() for cell in cells.split("|")]
    for name, cells in re.findall(r"^\| `(\w+)` \|(.*)\|$", GUIDE, re.M)
}


def test_every_protocol_for_a_question_is_in_the_table():
    questions = {name for name in PROTOCOLS.names() if name != "environment"}
    assert questions == {*ROWS, "multi_channel_test"}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_table(name):
    handler = build_protocol_handler(
        HyperParameters(
            scenario="graph_isomorphism",
            trainer="vanilla_ppo",
            dataset="generated",
            interaction_protocol=name,
        )
    )
    assert isinstance(handler, SingleVerifierProtocolHandler)
    agents, rounds, _, rewarded = ROWS[name]
    assert agents == ", ".join(handler.agent_names)
    assert int(rounds) == handler.max_message_rounds
    paid = {agent: handler.prover_paid_decisions[agent] for agent in handler.prover_names}
    if len(set(paid.values())) == len(paid) > 1:
        assert rewarded == ", ".join(f"{agent}: {decision}" for agent, decision in paid.items())
    elif paid:
        assert rewarded.startswith(str(*set(paid.values())))


def test_the_rewards_are_the_defaults():
    shown = dict(re.findall(r"`(\w+)` (−?\d)", GUIDE))
    assert len(shown) == 5
    for name, value in shown.items():
        default = ProtocolCommonParameters.model_fields[name].default
        assert float(value.replace("−", "-")) == default
