"""Operations on tapes of the body that looks at two graphs: pooling, tokens and back.

Shape letters as in :mod:`ratchet.scenarios.graph_isomorphism.body`; D = copies · d features of a
node, P pooled tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ratchet.agents.tape import Tape, Var


def round_digits(tape: Tape, x: Var, digits: int) -> Var:
    """Round; gradients pass straight through."""
    result = Var(torch.round(x.value, decimals=digits))
    tape.record(x.add_grad, result)
    return result


def sum_nodes(tape: Tape, nodes: Var, weight: Tensor) -> Var:
    """Sum over the nodes that exist: [2b, n, D] and weights [b, 2, n] → [2b, D]."""
    rows, n, _ = nodes.value.shape
    weight = weight.view(rows, n)
    result = Var(torch.bmm(weight.unsqueeze(1), nodes.value).squeeze(1))

    def back(grad: Tensor) -> None:
        nodes.add_grad(weight.unsqueeze(2) * grad.unsqueeze(1))

    tape.record(back, result)
    return result


def make_pairs(tape: Tape, pooled: Var, *, invariant: bool) -> Var:
    """Make the pairs' two tokens: [2b, D] → [b, 2, D]; the mean and half the distance if invariant.

    So swapping the graphs changes nothing.
    """
    shape = pooled.value.shape
    pairs = pooled.value.view(-1, 2, shape[1])
    if not invariant:
        result = Var(pairs)
        tape.record(lambda grad: pooled.add_grad(grad.reshape(shape)), result)
        return result
    half = pairs * 0.5
    first, second = half.unbind(1)
    difference = first - second
    result = Var(torch.stack([first + second, difference.abs()], dim=1))

    def back(grad: Tensor) -> None:
        d_mean, d_distance = (grad * 0.5).unbind(1)
        d_difference = d_distance * difference.sign()
        both = torch.stack([d_mean + d_difference, d_mean - d_difference], dim=1)
        pooled.add_grad(both.view(shape))

    tape.record(back, result)
    return result


def lay_tokens(tape: Tape, heard: Var | None, pooled: Var, flags: Tensor, nodes: Var) -> Var:
    """Lay tokens side by side: what was heard [b, d], the pair's [b, 2, d], nodes' [2b, n, d].

    ``flags`` [2, d] are added to the pair's.
    """
    leaf = tape.leaf(flags)
    shape = nodes.value.shape
    parts = [pooled.value + flags, nodes.value.view(shape[0] // 2, -1, shape[2])]
    if heard is not None:
        parts.insert(0, heard.value.unsqueeze(1))

    def back(grad: Tensor) -> None:
        *d_heard, d_pooled, d_nodes = grad.split_with_sizes(
            [part.shape[1] for part in parts], dim=1
        )
        if heard is not None:
            heard.add_grad(d_heard[0].squeeze(1))
        pooled.add_grad(d_pooled)
        leaf.add_grad(d_pooled.sum(0))
        nodes.add_grad(d_nodes.reshape(shape))

    result = Var(torch.cat(parts, dim=1))
    tape.record(back, result)
    return result


def split_tokens(tape: Tape, tokens: Var, num_pooled: int) -> tuple[Var, Var]:
    """Take tokens [b, T, d] apart: the pooled ones [b, P · d] and the nodes' [b, 2n, d]."""
    b, t, d = tokens.value.shape
    sizes = [num_pooled, t - num_pooled]
    pooled, nodes = tokens.value.split_with_sizes(sizes, dim=1)

    def back(d_pooled: Tensor | None, d_nodes: Tensor | None) -> None:
        grad = tokens.value.new_empty(b, t, d)
        for part, found in zip(
            grad.split_with_sizes(sizes, dim=1), (d_pooled, d_nodes), strict=True
        ):
            if found is None:
                part.zero_()
            else:
                part.copy_(found.reshape(part.shape))
        tokens.add_grad(grad)

    results = Var(pooled.flatten(1)), Var(nodes)
    tape.record(back, *results)
    return results
