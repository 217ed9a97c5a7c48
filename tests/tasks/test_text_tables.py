"""Tables of chat models have the names that those of networks have."""

from __future__ import annotations

from ratchet import HyperParameters
from ratchet.protocols import build_protocol_handler
from ratchet.rollouts.spec import rollout_spec
from ratchet.statistics.returns import mean_return, paid_agents
from ratchet.tracking.result_table import ResultTable
from tasks.text.files import result_table


def test_statistics_and_reports_find_what_chat_models_were_paid():
    parameters = {"scenario": "code_validation", "trainer": "pure_text_ei", "dataset": "generated"}
    protocol = build_protocol_handler(HyperParameters(**parameters))
    rollouts = rollout_spec(3, 2, 1).blank(2)
    rollouts["agents", "reward"][:, 1] = [[1.0, -1.0], [0.0, 1.0]]
    table = ResultTable("test", result_table(rollouts, protocol))
    assert paid_agents(table.columns) == ["prover", "verifier"]
    assert table.columns["reward.verifier"] == [-1.0, 1.0]
    assert mean_return(table.columns, "prover").value == 0.5
