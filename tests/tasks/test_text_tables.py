"""Result tables of chat models have the same column names as those of networks."""

from __future__ import annotations

from ratchet import HyperParameters
from ratchet.parameters.test_groups import test_groups
from ratchet.protocols import build_protocol_handler
from ratchet.rollouts.dataset import NestedArrayDictDataset
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.specs import rollout_spec
from ratchet.scenarios.code_validation.dataset import examples_to_dataset
from ratchet.scenarios.code_validation.generator.examples import Example
from ratchet.statistics.results import mean_return, paid_agents, same_datapoints
from ratchet.tracking.result_table import ResultTable
from tasks.text.files import result_table

PARAMETERS = {"scenario": "code_validation", "trainer": "pure_text_ei", "dataset": "generated"}


def test_statistics_and_reports_find_rewards_of_chat_models():
    protocol = build_protocol_handler(HyperParameters(**PARAMETERS))
    rollouts = rollout_spec(3, 2, 1).blank(2)
    rollouts["agents", "reward"][:, 1] = [[1.0, -1.0], [0.0, 1.0]]
    table = ResultTable("test", result_table(rollouts, protocol))
    assert paid_agents(table.columns) == ["prover", "verifier"]
    assert table.columns["reward.verifier"] == [-1.0, 1.0]
    assert mean_return(table.columns, "prover").value == 0.5


def test_each_row_contains_the_kind_of_bug_of_its_program():
    hyper_params = HyperParameters(**PARAMETERS)
    protocol, groups = build_protocol_handler(hyper_params), test_groups(hyper_params)
    rollouts = rollout_spec(3, 2, 1).blank(3)
    rollouts["datapoint_id"][:] = [2, 0, 2]
    examples = [Example("q", "a", y, bug=bug) for y, bug in ((1, -1), (0, 5), (0, 1))]
    data = examples_to_dataset(examples, "made here")
    table = result_table(rollouts, protocol, data, groups)
    assert table["bug"] == [1, 0, 1]
    labels = groups[0].labels
    assert [labels[bug] for bug in table["bug"]] == ["arithmetic", "no bug", "arithmetic"]
    validation = NestedArrayDictDataset(data[[0, 2]])
    assert result_table(rollouts, protocol, validation, groups)["bug"] == [1, 0, 1]
    fields = {name: data[name] for name in data.fields if name != "bug"}
    older = NestedArrayDictDataset(NestedArrayDict(fields, len(data)))
    assert "bug" not in result_table(rollouts, protocol, older, groups)


def test_labels_made_by_play_do_not_identify_datapoints():
    protocol = build_protocol_handler(HyperParameters(**PARAMETERS))
    rollouts = rollout_spec(3, 2, 1).blank(2)
    rollouts["datapoint_id"][:] = [0, 1]
    tables = {False: [], True: []}
    for y in ([0, 1], [1, 1]):
        rollouts["y"][:] = y
        for played, both in tables.items():
            both.append(result_table(rollouts, protocol, are_labels_played=played))
    assert not same_datapoints(*tables[False])
    assert same_datapoints(*tables[True])
