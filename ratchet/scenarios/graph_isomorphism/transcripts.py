"""Transcripts of episodes on graphs for the report: the named nodes, round by round.

Imported by name (:meth:`GraphIsomorphismEnvironment.transcripts`), so that code of pictures does
not enter training stages' code fingerprints.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np

from ratchet.rollouts.transcript_content import Transcript

if TYPE_CHECKING:
    import numpy.typing as npt
    from tensordict import TensorDictBase
    from torch import Tensor

    from ratchet.protocols.handler import ProtocolHandler
    from ratchet.scenarios.dataset import TensorDictDataset

LETTERS = "AB"
NO_DECISION = 2
_MAX_EPISODES = 64
_DIGITS = 3

Episode = tuple[int, range]
"""The environment that it was played in, and its steps."""


def graph_transcripts(
    rollouts: TensorDictBase, dataset: TensorDictDataset, handler: ProtocolHandler
) -> list[Transcript]:
    """Return transcripts of the first complete episodes of rollouts ``[E, T]``.

    Each is like a line of :func:`ratchet.rollouts.transcript_content.report_transcripts`, with
    ``graphs`` in place of a solution: for each of the two, ``nodes`` ([x, y] in the unit square, by
    number) and ``edges`` (pairs of numbers). A message's ``marks`` are [graph, node] for each of
    its positions.
    """
    reader = _Reader(rollouts.cpu(), handler)
    episodes = [
        episode for _, episode in zip(range(_MAX_EPISODES), reader.episodes(), strict=False)
    ]
    transcripts = [reader.read(number, episode) for number, episode in enumerate(episodes)]
    was_right: dict[int, bool] = {}
    for one in transcripts:
        which = one["datapoint_id"]
        was_right[which] = was_right.get(which, False) or one["correct"]
    for one in transcripts:
        one["always_failed"] = not was_right[one["datapoint_id"]]
        ids = one["datapoint_id"]
        one["graphs"] = [
            _picture(adjacency, present)
            for adjacency, present in zip(
                dataset["adjacency"][ids], dataset["node_mask"][ids], strict=True
            )
        ]
    return transcripts


def _picture(adjacency: Tensor, present: Tensor) -> dict[str, Any]:
    """Lay out a graph ``[N, N]``: independent of earlier drawings."""
    there = np.flatnonzero(present.cpu().numpy())
    edges = np.argwhere(np.triu(adjacency.cpu().numpy(), 1))
    graph = nx.Graph()
    graph.add_nodes_from(int(node) for node in there)
    graph.add_edges_from((int(a), int(b)) for a, b in edges)
    placed = nx.spring_layout(graph, k=4 / sqrt(max(len(there), 1)), iterations=200, seed=0)
    points = np.zeros((int(there.max(initial=-1)) + 1, 2))
    for node, position in placed.items():
        points[node] = position
    low, high = points[there].min(0, initial=0.0), points[there].max(0, initial=0.0)
    scaled = (points - low) / np.maximum(high - low, 1e-9)
    return {
        "nodes": [
            [round(float(x), _DIGITS) for x in scaled[node]] if node in placed else None
            for node in range(len(points))
        ],
        "edges": [[int(a), int(b)] for a, b in edges],
    }


class _Reader:
    """Reads episodes of rollouts."""

    def __init__(self, rollouts: TensorDictBase, handler: ProtocolHandler) -> None:
        self.handler = handler
        self._rollouts = rollouts
        self.ends = self._array("next", "done") | self._array("next", "terminated")
        self.rounds = self._array("round")
        self.reward = self._array("next", "agents", "reward")
        self.message = self._array("agents", "message")  # [E, T, A, C, P]
        self.decision = self._array("agents", "decision")
        playing = ~self._array("agents", "done")
        self.speaks = self._array("agents", "active") & playing[..., None]  # [E, T, A, C]
        self.decides = self._array("agents", "can_decide") & playing
        self.num_nodes = self._array("x").shape[-1] // 2

    def _array(self, *key: str) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = self._rollouts.get(key).numpy()
        return array

    def episodes(self) -> Iterator[Episode]:
        """Iterate over the episodes that are complete in the batch."""
        for environment, ends in enumerate(self.ends):
            start = 0
            for stop in np.flatnonzero(ends).tolist():
                if self.rounds[environment, start] == 0:
                    yield environment, range(start, stop + 1)
                start = stop + 1

    def read(self, number: int, episode: Episode) -> Transcript:
        """Return the transcript of one episode."""
        environment, steps = episode
        names, first = list(self.handler.agent_names), (environment, steps[0])
        rounds = [self._round(environment, step) for step in steps]
        verifier = next(iter(self.handler.verifier_names), None)
        decisions = [one["decision"].get(verifier, NO_DECISION) for one in rounds]
        decision = next((d for d in reversed(decisions) if d != NO_DECISION), NO_DECISION)
        y = int(self._array("y")[first])
        reward = self.reward[environment, steps.start : steps.stop].sum(0)
        texts = [message["text"] for one in rounds for message in one["messages"]]
        return {
            "rollout": number,
            "datapoint_id": int(self._array("datapoint_id")[first]),
            "seed": int(self._array("seed")[first]),
            "y": y,
            "truth": f"the graphs are {'the same' if y == 1 else 'different'}",
            "prover_stance": 1,
            "question": " ".join(texts) or "nothing said",
            "solution": "",
            "decision": decision,
            "correct": decision == y,
            "rewards": {name: float(r) for name, r in zip(names, reward, strict=True)},
            "rounds": rounds,
        }

    def _round(self, environment: int, step: int) -> dict[str, Any]:
        at = (environment, step)
        names = list(self.handler.agent_names)
        messages = []
        for agent, channel in np.argwhere(self.speaks[at]).tolist():
            marks = [divmod(int(s), self.num_nodes) for s in self.message[at][agent, channel]]
            messages.append(
                {
                    "agent": names[agent],
                    "channel": self.handler.message_channel_names[channel],
                    "text": " ".join(f"{LETTERS[graph]}{node}" for graph, node in marks),
                    "marks": [list(mark) for mark in marks],
                }
            )
        decided = np.flatnonzero(self.decides[at]).tolist()
        return {
            "round": int(self.rounds[at]),
            "messages": messages,
            "raw": {},
            "decision": {names[agent]: int(self.decision[at][agent]) for agent in decided},
        }
