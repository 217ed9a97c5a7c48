"""The report's transcripts of episodes on graphs match the episodes."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from ratchet.parameters import HyperParameters
from ratchet.protocols import build_protocol_handler
from ratchet.scenarios.dataset import TensorDictDataset
from ratchet.scenarios.graph_isomorphism.transcripts import graph_transcripts

N = 4


@pytest.fixture
def handler():
    hyper_params = HyperParameters(
        scenario="graph_isomorphism", trainer="vanilla_ppo", dataset="generated"
    )
    return build_protocol_handler(hyper_params)


@pytest.fixture
def dataset():
    path = torch.zeros(N, N, dtype=torch.uint8)
    for a, b in ((0, 1), (1, 3)):
        path[a, b] = path[b, a] = 1
    full = 1 - torch.eye(N, dtype=torch.uint8)
    mask = torch.tensor([[True, True, False, True], [True] * 4])
    fields = {"adjacency": torch.stack([path, full])[None], "node_mask": mask[None]}
    fields = {name: tensor.expand(3, *tensor.shape[1:]) for name, tensor in fields.items()}
    return TensorDictDataset(TensorDict({**fields, "y": torch.zeros(3).long()}, batch_size=[3]))


@pytest.fixture
def rollouts():
    """Two environments of four steps; prover and verifier, messages of two nodes."""
    ends = torch.tensor([[False, True, False, False], [False, False, False, True]])
    rounds = torch.tensor([[0, 1, 0, 1], [0, 1, 2, 3]])
    verifier_first = rounds % 2 == 0
    active = torch.stack([~verifier_first, verifier_first], -1)
    said = torch.arange(16).view(2, 4, 1, 1, 2).expand(2, 4, 2, 1, 2) % (2 * N)
    decision = torch.full((2, 4, 2), 2)
    decision[0, 0, 1], decision[1, 2, 1] = 1, 0
    agents = {
        "active": active.unsqueeze(-1),
        "done": torch.zeros(2, 4, 2, dtype=torch.bool),
        "message": said,
        "decision": decision,
        "can_decide": active & torch.tensor([False, True]),
    }
    reward = torch.ones(2, 4, 2) * torch.tensor([0.5, -1.0])
    following = {
        "done": ends,
        "terminated": torch.zeros(2, 4).bool(),
        "agents": {"reward": reward},
    }
    ids = torch.tensor([[2, 2, 0, 0], [1, 1, 1, 1]])
    content = {"agents": agents, "next": following, "round": rounds, "datapoint_id": ids}
    content |= {
        "y": torch.ones(2, 4).long(),
        "seed": ids,
        "x": torch.zeros(2, 4, N, 4, 1, 2, 2 * N),
    }
    return TensorDict(content, batch_size=[2, 4])


def test_whole_episodes_are_written_down_with_who_pointed_where(rollouts, dataset, handler):
    first, second = graph_transcripts(rollouts, dataset, handler)
    assert (first["datapoint_id"], second["datapoint_id"]) == (2, 1)
    assert (first["decision"], first["correct"], second["correct"]) == (1, True, False)
    assert (first["always_failed"], second["always_failed"]) == (False, True)
    assert first["rewards"] == {"prover": 1.0, "verifier": -2.0}
    marks = [
        [(m["agent"], m["text"], m["marks"]) for m in one["messages"]] for one in first["rounds"]
    ]
    assert marks == [
        [("verifier", "A0 A1", [[0, 0], [0, 1]])],
        [("prover", "A2 A3", [[0, 2], [0, 3]])],
    ]
    assert [one["decision"] for one in first["rounds"]] == [{"verifier": 1}, {}]
    assert [m["text"] for m in second["rounds"][2]["messages"]] == ["B0 B1"]
    assert [one["round"] for one in second["rounds"]] == [0, 1, 2, 3]


def test_graphs_are_laid_out_the_same_each_time_within_the_picture(rollouts, dataset, handler):
    torch.rand(3)  # what was drawn before is no matter
    first, second = graph_transcripts(rollouts, dataset, handler)
    assert first["graphs"] == second["graphs"], "the same graphs of another datapoint"
    path, full = first["graphs"]
    assert path["edges"] == [[0, 1], [1, 3]]
    assert path["nodes"][2] is None, "a node that is absent"
    assert len(full["edges"]) == 6
    points = [point for graph in (path, full) for point in graph["nodes"] if point]
    assert len(points) == 7
    assert all(0 <= number <= 1 for point in points for number in point)
    assert len({tuple(point) for point in full["nodes"]}) == 4
