"""Scripted agents for ``nip``: individualise a node together, refine colours, compare.

An upper bound for trained agents. Both agents read the conversation as pairs
(question, answer), assign a unique colour to the two nodes of each pair, and refine colours in
``num_gnn_layers`` Weisfeiler–Lehman rounds (one for each layer of the GNN).

- The verifier rejects as soon as the graphs' colours differ in number. It accepts when every colour
  is one node in each graph (then refinement has checked the pairing edge by edge), or when it has
  no further turn. Otherwise it sends a node of the first graph whose colour is shared.
- The prover answers with a node of the same colour in the other graph, if one exists.

Accuracy on 5,000 pairs of ``er10000`` with 8 rounds (in brackets: 1 round, without a prover), by
the layers of the verifier and the prover: 5 and 5 100 % (100 %); 2 and 5 98.1 % (65.0 %); 1 and 5
84.2 % (55.0 %). With a strong prover no isomorphic pair was rejected; the errors are pairs that
neither the refinement rounds nor the verifier's questions distinguish. A prover with few layers
answers with wrong nodes, so isomorphic pairs are rejected then: 2 and 2 85.3 %, 1 and 1 58.4 %.
Graphs whose nodes of one stable colour are not images of each other (such as strongly regular ones)
could also mislead the prover. No parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ratchet.agents.networks.heads import ConstantValueHead
from ratchet.agents.parts import (
    Agent,
    AgentBody,
    AgentInput,
    AgentPolicyHead,
    PolicyLogits,
    Representation,
)
from ratchet.errors import ParameterError, StateError

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.scenarios.graph_isomorphism.parameters import GraphIsomorphismAgentParameters

CERTAIN = 1e3
"""A logit so large that the policy is deterministic in f32."""
REJECT, ACCEPT, GO_ON = 0, 1, 2


def build_manual_agent(
    hyper_params: HyperParameters,
    handler: ProtocolHandler,
    section: GraphIsomorphismAgentParameters,
    name: str,
) -> Agent:
    """Build the scripted prover or verifier."""
    got = (
        hyper_params.interaction_protocol,
        hyper_params.message_size,
        hyper_params.include_linear_message_space,
        hyper_params.protocol_common.zero_knowledge,
    )
    if got != ("nip", 1, False, False):
        raise ParameterError(
            f"agents.{name}.use_manual_architecture: got (interaction_protocol, message_size,"
            f" include_linear_message_space, zero_knowledge) = {got}, expected"
            " ('nip', 1, False, False): the scripted agents support no other game."
        )
    verifier_first = bool(hyper_params.protocol_common.verifier_first)
    body = ManualBody(section.num_gnn_layers, first_question=0 if verifier_first else 1)
    policy: AgentPolicyHead
    if name in handler.verifier_names:
        policy = ManualVerifierHead(handler.played_message_rounds)
    else:
        policy = ManualProverHead()
    return Agent(name, section, body=body, policy_head=policy, value_head=ConstantValueHead())


class ManualBody(AgentBody):
    """Refines colours with the exchanged pairs individualised, in Weisfeiler–Lehman rounds.

    ``first_question`` is the round of the verifier's first question.
    """

    def __init__(self, num_rounds: int, first_question: int) -> None:
        super().__init__()
        self.num_rounds = num_rounds
        self.first_question = first_question

    def forward(self, inputs: AgentInput) -> Representation:
        """Return ``symbols`` bool [b, rounds + 1, 2n, 2n]: who has whose colour after each round.

        ``pooled`` is bool [b, 2n]: which nodes exist.
        """
        present = inputs.data["node_mask"].flatten(1)
        # Messages: the normalised history is positive exactly where a one was.
        messages = (inputs.history > 0).flatten(2)[:, self.first_question :]  # [b, R', 2n]
        pairs = messages.shape[1] // 2
        complete = messages[:, : 2 * pairs].reshape(len(messages), pairs, 2, messages.shape[2])
        answered = complete.any(-1).all(-1)[..., None]  # [b, pairs, 1]
        marks = complete.any(2) & answered  # [b, pairs, 2n]
        same = present.unsqueeze(2) & present.unsqueeze(1)
        same = same & (marks.unsqueeze(3) == marks.unsqueeze(2)).all(1)
        history = [same]
        for _ in range(self.num_rounds):
            same = _refine(inputs.data["adjacency"], same)
            history.append(same)
        return Representation(pooled=present, symbols=torch.stack(history, dim=1))


def _refine(adjacency: Tensor, same: Tensor) -> Tensor:
    """Refine by one round: nodes keep one colour if their neighbours' colours are equal in number.

    Adjacency is f32 [b, 2, n, n], with or without self-loops; ``same`` is bool [b, 2n, 2n].
    """
    b, _, n, _ = adjacency.shape
    colours = same.view(b, 2, n, 2 * n).to(torch.float64)
    counts = (adjacency.to(torch.float64) @ colours).view(b, 2 * n, 2 * n)
    products = counts @ counts.transpose(1, 2)
    squares = products.diagonal(dim1=1, dim2=2)
    # Whole numbers, exact in f64: rows are equal iff their squared distance is zero.
    return same & (squares.unsqueeze(2) + squares.unsqueeze(1) == 2 * products)


def _refined(representation: Representation | None) -> tuple[Tensor, Tensor]:
    """Return which nodes exist and the colours, as :class:`ManualBody` makes them."""
    if representation is None or representation.pooled is None or representation.symbols is None:
        raise StateError("a scripted head got no representation, expected its body's colours.")
    return representation.pooled, representation.symbols


def _choose(score: Tensor, *, ties: bool) -> Tensor:
    """Return logits f32 [b, 1, 1, S] that are certain of the best of [b, S]: the first, or all."""
    if ties:
        chosen = (score == score.amax(-1, keepdim=True)).long()
    else:
        chosen = torch.nn.functional.one_hot(score.argmax(-1), score.shape[-1])
    return (chosen * CERTAIN)[:, None, None]


class ManualProverHead(AgentPolicyHead):
    """Answers with the node of the other graph that stays alike the longest.

    With ``ties`` with any of them, else the first.
    """

    def __init__(self, *, ties: bool = False) -> None:
        super().__init__()
        self.ties = ties

    def with_ties(self) -> ManualProverHead:
        """Return a head that gives any of the nodes that stay alike the longest."""
        return ManualProverHead(ties=True)

    def forward(self, representation: Representation | None, inputs: AgentInput) -> PolicyLogits:
        """Return logits for b rows."""
        present, colours = _refined(representation)
        question = inputs.message.flatten(1).bool()  # [b, 2n]
        alike = (colours & question[:, None, :, None]).any(2).sum(1)  # rounds alike, [b, 2n]
        n = question.shape[1] // 2
        other_graph = ~question.view(-1, 2, n).any(-1).repeat_interleave(n, dim=1)
        score = alike + (other_graph & present) * 100
        return PolicyLogits(message=_choose(score, ties=self.ties).float())


class ManualVerifierHead(AgentPolicyHead):
    """Rejects on a difference, accepts when all nodes are checked, otherwise sends a question.

    With ``ties``, it is uniform over nodes of the largest colours, and over messages when it
    decides.
    """

    def __init__(self, max_rounds: int, *, ties: bool = False) -> None:
        super().__init__()
        self.max_rounds = max_rounds
        self.ties = ties

    def with_ties(self) -> ManualVerifierHead:
        """Return a head to which equally good questions are one."""
        return ManualVerifierHead(self.max_rounds, ties=True)

    def forward(self, representation: Representation | None, inputs: AgentInput) -> PolicyLogits:
        """Return logits for b rows."""
        present, colours = _refined(representation)
        before, same = colours[:, -2], colours[:, -1]
        n = same.shape[1] // 2
        sizes = same.view(-1, 2 * n, 2, n).sum(-1)  # [b, 2n, 2]: nodes of one's colour, by graph
        apart = (sizes[..., 0] != sizes[..., 1]).any(1)
        # One node a colour in each graph, and another round changes nothing: an isomorphism.
        checked = ((before.sum(-1) == 2) | ~present).all(1) & ~apart
        last = inputs.round + 2 >= self.max_rounds
        accept = ~apart & (checked | last)
        decision = torch.zeros(len(apart), 3, device=same.device)
        decision[:, REJECT] = apart * CERTAIN
        decision[:, ACCEPT] = ~apart * (CERTAIN / 2) + accept * CERTAIN
        decision[:, GO_ON] = (~apart & ~accept) * CERTAIN
        question = sizes[..., 0] * present
        question[:, n:] = -1
        if self.ties:  # a message sent with a decision has no effect
            question = question.masked_fill((apart | accept).unsqueeze(1), 0)
        message = _choose(question, ties=self.ties).float()
        return PolicyLogits(message=message, decision=decision)
