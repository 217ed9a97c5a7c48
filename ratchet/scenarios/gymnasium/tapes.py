"""Recorder of an environment's agents on a tape: perceptrons, and scores of actions.

B frames, A agents, K wide actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from ratchet.agents.tapes import Record, Tape, Var, may_record, register_recorder
from ratchet.scenarios.gymnasium.actor_critic import (
    ContinuousActionDistribution,
    ControlActorCritic,
    FeatureNormalizer,
    distribution_of,
    divide,
    total,
)
from ratchet.scenarios.gymnasium.bodies import Body, Layer, NetworkInputs
from ratchet.scenarios.gymnasium.networks import ControlAgent, Head
from ratchet.scenarios.gymnasium.spaces import DiscreteActions

_ACTIVATIONS = ("tanh", "relu")
_LARGE = 4096


@register_recorder(ControlActorCritic, parts=(Body, Head, FeatureNormalizer, nn.Linear))
def record_agents(
    agents: ControlActorCritic, td: TensorDictBase, names: Sequence[str] | None = None
) -> Record | None:
    """Record :meth:`ControlActorCritic.score`, if all agents' parts are supported."""
    inputs, chosen = agents.asked(td, names)
    if not all(_can_record(agent, agents.parts[name]) for name, agent in agents.agents.items()):
        return None
    shown = (x for each in inputs.values() for x in (each.policy, each.critic))
    if not all(may_record(x) and not x.requires_grad for x in shown):
        return None
    return lambda tape: _record_scores(tape, agents.agents, inputs, chosen)


def _can_record(agent: ControlAgent, parts: nn.Module) -> bool:
    """Return whether an agent's parts are those that this module records."""
    return (
        type(agent) is ControlAgent
        and agent.parameters.activation_function in _ACTIVATIONS
        and dict(parts.named_children()) == agent.parts()
    )


def _record_scores(
    tape: Tape,
    agents: Mapping[str, ControlAgent],
    inputs: Mapping[str, NetworkInputs],
    chosen: Mapping[str, Tensor | None],
) -> list[Var]:
    rows: list[tuple[Var, Var, Var]] = []
    for name, x in inputs.items():
        agent, actions = agents[name], chosen[name]
        if actions is None:
            zero = Var(x.policy.new_zeros(len(x.policy), 1), needs_grad=False)
            rows.append((zero, zero, zero))
            continue
        outputs, value = _record_agent(tape, agent, x)
        rows.append((*_record_actions(tape, agent, outputs, actions), value))
    return [_side_by_side(tape, column) for column in zip(*rows, strict=True)]


def _record_agent(tape: Tape, agent: ControlAgent, inputs: NetworkInputs) -> tuple[Var, Var]:
    """Record policy and critic on their inputs in B frames: [B, outputs] and [B, 1]."""
    if agent.is_random:
        said, worth = (Var(nothing, needs_grad=False) for nothing in agent.policy_and_value(inputs))
        return said, worth
    name = agent.parameters.activation_function
    said, worth = (
        out
        for x, tower in zip((inputs.policy, inputs.critic), agent.towers, strict=False)
        for out in record_perceptron(tape, x, *tower, name)
    )
    return said, worth


def _side_by_side(tape: Tape, columns: Sequence[Var]) -> Var:
    """Arrange columns [B, 1] as [B, A]."""
    if len(columns) == 1:
        return columns[0]

    def back(grad: Tensor) -> None:
        for column, piece in zip(columns, grad.split(1, 1), strict=True):  # type: ignore[no-untyped-call] # of torch
            column.add_grad(piece)

    result = Var(torch.cat([column.value for column in columns], 1))
    tape.record(back, result)
    return result


def record_perceptron(
    tape: Tape, x: Tensor, layers: Sequence[Layer], heads: Sequence[Layer], activation_name: str
) -> list[Var]:
    """Apply layers with an activation after each, then every head, to a constant x f32 [B, d]."""
    is_tanh = activation_name == "tanh"
    hidden, kept = x, []
    for weight, bias in layers:
        hidden = torch.addmm(bias, hidden, weight.t())
        hidden = _tanh_(hidden) if is_tanh else hidden.relu_()
        kept.append(hidden)
    outputs = [Var(torch.addmm(bias, hidden, weight.t())) for weight, bias in heads]
    if not tape.keeps:
        return outputs
    leaves = [(tape.leaf(weight), tape.leaf(bias)) for weight, bias in (*layers, *heads)]

    def back(*grads: Tensor | None) -> None:
        of_hidden: Tensor | None = None
        for (weight, bias), grad in zip(leaves[len(layers) :], grads, strict=True):
            if grad is None:
                continue
            weight.add_grad(grad.t().mm(kept[-1] if kept else x))
            bias.add_grad(grad.sum(0))
            of_hidden = (
                grad.mm(weight.value)
                if of_hidden is None
                else torch.addmm(of_hidden, grad, weight.value)
            )
        for index in reversed(range(len(layers))):
            weight, bias = leaves[index]
            assert of_hidden is not None  # the tape goes back where there is a gradient
            inner = (
                torch.ops.aten.tanh_backward.default(of_hidden, kept[index])
                if is_tanh
                else torch.ops.aten.threshold_backward.default(of_hidden, kept[index], 0)
            )
            weight.add_grad(inner.t().mm(kept[index - 1] if index else x))
            bias.add_grad(inner.sum(0))
            if index:
                of_hidden = inner.mm(weight.value)

    tape.record(back, *outputs)
    return outputs


def _tanh_(x: Tensor) -> Tensor:
    """Compute tanh(x) = 2σ(2x) − 1 in place; torch's own is slower as soon as x is large."""
    if x.numel() < _LARGE:
        return x.tanh_()
    return x.add_(x).sigmoid_().mul_(2).sub_(1)


def _record_actions(
    tape: Tape, agent: ControlAgent, outputs: Var, actions: Tensor
) -> tuple[Var, Var]:
    """Record log-probabilities and entropies of actions [B, K]: [B, 1] each."""
    if isinstance(agent.space.actions, DiscreteActions):
        return record_categorical_scores(tape, outputs, actions, agent.space.actions.sizes)
    distribution = cast(ContinuousActionDistribution, distribution_of(agent, outputs.value))
    log_prob, entropy = distribution.log_prob_and_entropy(actions)
    learned = None if agent.policy_head is None else tape.leaf(distribution.log_std)
    precision = (-distribution.log_std).exp()
    deviation = (actions - distribution.mean).mul_(precision)

    def back(of_log_prob: Tensor | None, of_entropy: Tensor | None) -> None:
        if of_log_prob is not None:
            outputs.add_grad(deviation * of_log_prob * precision)
            if learned is not None:
                learned.add_grad(((deviation.square() - 1) * of_log_prob).sum(0))
        if of_entropy is not None and learned is not None:
            learned.add_grad(of_entropy.sum().expand(learned.value.shape))

    results = (Var(log_prob), Var(entropy))
    tape.record(back, *results)
    return results


def record_categorical_scores(
    tape: Tape, logits: Var, actions: Tensor, sizes: Sequence[int]
) -> tuple[Var, Var]:
    """Record :func:`categorical_scores`, by d log p(a) = 1[a] - p and dH = -p (log p + H)."""
    log_probs = [torch.log_softmax(factor, -1) for factor in divide(logits.value, sizes)]
    probs = [factor.exp() for factor in log_probs]
    entropies = [
        (p * log_p).sum(-1, keepdim=True).neg_() for p, log_p in zip(probs, log_probs, strict=True)
    ]
    taken = actions.split(1, -1)  # type: ignore[no-untyped-call] # of torch

    def back(of_chosen: Tensor | None, of_entropy: Tensor | None) -> None:
        grads = []
        for index, (p, log_p) in enumerate(zip(probs, log_probs, strict=True)):
            grad = torch.zeros_like(p)
            if of_entropy is not None:
                grad = (log_p + entropies[index]).mul_(of_entropy)
            if of_chosen is not None:
                grad.add_(of_chosen)
            grad.mul_(p).neg_()
            if of_chosen is not None:
                grad.scatter_add_(-1, taken[index], of_chosen)
            grads.append(grad)
        logits.add_grad(grads[0] if len(grads) == 1 else torch.cat(grads, -1))

    chosen = [p.gather(-1, action) for p, action in zip(log_probs, taken, strict=True)]
    outputs = (Var(total(chosen)), Var(total(entropies)))
    tape.record(back, *outputs)
    return outputs
