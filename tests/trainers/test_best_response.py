"""The best response is the best of all messages, chosen by its sender's observations."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import ParameterError
from ratchet.scenarios import build_scenario_instance
from trainers.callbacks.registry import check_callbacks
from trainers.registry import build_trainer
from trainers.tensordict.best_response import find_best_response

CHANNEL: dict[str, Any] = {
    "scenario": "binary_erasure_channel",
    "interaction_protocol": "adp",
    "rl": {"frames_per_batch": 512, "minibatch_size": 128, "num_iterations": 1, "lr": 0.01},
}
AGENT = {"num_gnn_layers": 1, "num_transformer_layers": 1, "use_batch_norm": False}
GRAPHS: dict[str, Any] = {
    "scenario": "graph_isomorphism",
    "interaction_protocol": "nip",
    "nip_protocol": {"min_message_rounds": 3, "max_message_rounds": 3},
    "graph_isomorphism": {"num_pairs": 60, "graph_sizes": [7, 8]},
    "agents": {"_default": AGENT},
    "rl": {"frames_per_batch": 192, "minibatch_size": 64, "num_iterations": 1},
}


def make_trainer(base: dict[str, Any], **changes: Any) -> Any:
    hyper_params = HyperParameters(
        trainer="vanilla_ppo", dataset="generated", **{**base, **changes}
    )
    settings = ExperimentSettings()
    return build_trainer(hyper_params, build_scenario_instance(hyper_params, settings), settings)


def play(trainer: Any, monkeypatch: pytest.MonkeyPatch, message_of: Any) -> Any:
    """Test the agents while the prover's message is a function of the datapoint."""
    agents, environment = trainer.combined_agents, trainer.test_environment
    act, index = agents.act, trainer.agent_names.index("prover")

    def act_otherwise(td: Any, **options: Any) -> Any:
        act(td, **options)
        chosen = torch.tensor([message_of(environment.dataset, i) for i in td["datapoint_id"]])
        messages = td["agents", "message"].clone()
        messages[:, index] = chosen.view(len(chosen), -1, 1)  # one for all channels, or for each
        td["agents", "message"] = messages
        return td

    with monkeypatch.context() as patched:
        patched.setattr(agents, "act", act_otherwise)
        return trainer.run_test("test").table


def test_a_prover_of_the_channel_chooses_by_the_bit_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(CHANNEL, seed=1)  # where it would gain by seeing more than the bit
    trainer.train()
    found = find_best_response(trainer, "prover")
    policies = [
        play(trainer, monkeypatch, lambda data, i, policy=policy: policy[int(data["bit"][i])])
        for policy in itertools.product((0, 1), repeat=2)
    ]
    assert found.num_messages == 2
    assert sum(found.table["reward.prover"]) == max(sum(t["reward.prover"]) for t in policies)
    assert sum(found.worst["correct"]) == min(sum(t["correct"]) for t in policies)
    assert sum(found.worst["correct"]) <= sum(found.table["correct"])


def test_a_prover_sends_one_message_to_each_copy_of_a_protocol_with_zero_knowledge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = make_trainer({**CHANNEL, "protocol_common": {"zero_knowledge": True}}, seed=1)
    trainer.train()
    found = find_best_response(trainer, "prover")
    policies = [
        play(
            trainer,
            monkeypatch,
            lambda data, i, policy=policy: (*policy[int(data["bit"][i])], 0),  # not the simulator's
        )
        for policy in itertools.product(itertools.product((0, 1), repeat=2), repeat=2)
    ]
    assert found.num_messages == 4
    rewards = [sum(table["reward.prover"]) for table in policies]
    assert sum(found.table["reward.prover"]) == pytest.approx(max(rewards))
    assert sum(found.worst["correct"]) == min(sum(t["correct"]) for t in policies)


def test_a_prover_of_graphs_chooses_for_each_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(GRAPHS, seed=0)
    trainer.initial_state()
    found = find_best_response(trainer, "prover")
    data = trainer.test_environment.dataset
    present = data["node_mask"][:, 1]  # it names nodes of the second graph
    n = present.shape[-1]
    tables = [play(trainer, monkeypatch, lambda *_, m=m: m) for m in range(n, 2 * n)]
    rows = found.table["datapoint_id"]
    allowed = present[torch.tensor(rows)].T
    correct = torch.tensor([table["correct"] for table in tables])
    believed = torch.tensor([table["reward.prover"] for table in tables])
    assert found.worst["correct"] == (correct | ~allowed).all(0).tolist()
    best = believed.masked_fill(~allowed, -torch.inf).max(0).values
    assert found.table["reward.prover"] == best.tolist()


@pytest.mark.parametrize(
    ("changes", "agent", "reason"),
    [
        ({}, "verifier", "it decides"),
        ({"nip_protocol": {"min_message_rounds": 5, "max_message_rounds": 5}}, "prover", "sends 2"),
        ({"message_size": 4}, "prover", "possible messages"),
        ({"include_linear_message_space": True}, "prover", "linear message space"),
        ({"agents": {"_default": {**AGENT, "use_batch_norm": True}}}, "prover", "use_batch_norm"),
    ],
)
def test_messages_that_cannot_all_be_tried_are_refused(
    changes: dict[str, Any], agent: str, reason: str
) -> None:
    with pytest.raises(ParameterError, match=reason):
        find_best_response(make_trainer(GRAPHS, **changes), agent)


def test_the_callback_adds_both_results_to_tests_on_the_right_dataset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = []

    def search(trainer: Any, agent: str, dataset: str) -> Any:
        searched.append((agent, dataset))
        return find_best_response(trainer, agent, dataset)

    base = {**CHANNEL, "callbacks": ["best_response"]}
    trainer = make_trainer(base, seed=1)
    trainer.train()
    searched.clear()
    monkeypatch.setattr("trainers.callbacks.best_response.find_best_response", search)
    for dataset in ("test", "train"):
        found = find_best_response(trainer, "prover", dataset)
        metrics = trainer.run_test(dataset).metrics
        for name, table in (("best_response", found.table), ("any_messages", found.worst)):
            correct = torch.tensor(table["correct"]).double().mean()
            assert metrics[f"{name}.accuracy"] == pytest.approx(float(correct))
    assert metrics["any_messages.accuracy"] <= metrics["best_response.accuracy"]
    assert searched == [("prover", "test"), ("prover", "train")]


def test_the_callback_without_another_agent_repeats_the_accuracy() -> None:
    changes = {"interaction_protocol": "solo_verifier", "callbacks": ["best_response"]}
    trainer = make_trainer({**CHANNEL, **changes}, seed=1)
    trainer.initial_state()
    metrics = trainer.run_test("test").metrics
    assert metrics["any_messages.accuracy"] == metrics["accuracy"]


def test_the_callback_refuses_several_other_agents() -> None:
    trainer = make_trainer({**CHANNEL, "interaction_protocol": "debate"})
    hyper_params = trainer.hyper_params.replace({"callbacks": ["best_response"]})
    with pytest.raises(ParameterError, match=r"best_response.*expected at most one"):
        check_callbacks(hyper_params, type(trainer), trainer.protocol_handler, None)
