"""A stack of graph isomorphism network layers (Xu et al. 2019) over dense adjacency matrices.

Each layer sums a node and its neighbours (ε = 0, the paper's GIN-0) in one matrix product and sends
the sum through a two-layer MLP. All layers' weights lie in one tensor, which spares the optimiser
and the backward pass many small ones. Shape letters: g graphs, n nodes, c copies of the features,
d features, h hidden features, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ratchet.agents.layers import Initializer, activation
from ratchet.agents.tape import Tape, Var


@dataclass(frozen=True)
class NeighbourSums:
    """What nodes sum over themselves and their neighbours before anything is learned.

    The first layer's sum of encoded features, Σ (W x + b) over a node and its neighbours, is
    W Σx + b · (their number): the sums do not depend on weights, and many nodes have the same
    ones. So the first layer is computed once for each different sum.

    Attributes
    ----------
    sums
        f32 [U, F + 1]: different sums of features, and over how many nodes they go.
    index
        i64 [b, 2, n, c]: which of them is each node's, in each copy of the features.
    """

    sums: Tensor
    index: Tensor

    @classmethod
    def of(
        cls, features: Tensor | None, adjacency: Tensor, *, bare_copy: bool, share: bool
    ) -> NeighbourSums:
        """Sum features.

        Parameters
        ----------
        features
            f32 [b, 2, n, F]; None to have the bare copy alone, of F = 0 features.
        adjacency
            f32 [b, 2, n, n], with self-loops.
        bare_copy
            Whether there is a (further) copy of the nodes whose features are zero.
        share
            Whether to find out which sums are the same: worth it for what is used several times.
        """
        b, graphs, n, _ = adjacency.shape
        degree = adjacency.sum(-1)  # [b, 2, n]
        tables, indices = [], []
        width = 0 if features is None else features.shape[-1]
        if features is not None:
            summed = torch.matmul(adjacency, features)
            table = torch.cat([summed, degree.unsqueeze(-1)], dim=-1).flatten(0, 2)
            index = torch.arange(len(table), device=table.device)
            if share:
                table, index = _unique_rows(table)
            tables.append(table)
            indices.append(index.view(b, graphs, n))
        if bare_copy:
            bare = adjacency.new_zeros(n + 1, width + 1)
            bare[:, -1] = torch.arange(n + 1, device=adjacency.device)
            indices.append(degree.to(torch.int64) + sum(map(len, tables)))
            tables.append(bare)
        return cls(torch.cat(tables), torch.stack(indices, dim=-1))

    def take(self, rows: Tensor) -> NeighbourSums:
        """Take rows [r] of the b pairs."""
        index = self.index.index_select(0, rows)
        if 2 * len(self.sums) <= index.numel():
            return NeighbourSums(self.sums, index)
        every = torch.arange(index.numel(), device=index.device)
        return NeighbourSums(self.sums.index_select(0, index.flatten()), every.view(index.shape))


class GinStack(nn.Module):
    """L layers of message passing.

    Parameters
    ----------
    num_layers, d_model, d_mlp
        L, d, h.
    activation_name
        Between the MLPs' layers; with tanh the stack can be recorded on a tape.
    init
        Where weights come from.
    """

    def __init__(
        self,
        num_layers: int,
        d_model: int,
        d_mlp: int,
        *,
        activation_name: str,
        init: Initializer,
    ) -> None:
        super().__init__()
        self.in_weight, self.in_bias = init.stacked_linear(num_layers, d_model, d_mlp)
        self.out_weight, self.out_bias = init.stacked_linear(num_layers, d_mlp, d_model)
        self._activation = activation(activation_name)
        self.records = activation_name == "tanh"

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        """Pass messages L times.

        Parameters
        ----------
        nodes
            f32 [g, n, c, d]: c copies that differ in their features only.
        adjacency
            f32 [g, n, n], symmetric, with self-loops. Absent nodes have none, so that nothing of
            theirs is ever read; their own features are meaningless.
        """
        for layer in range(len(self.in_weight)):
            summed = torch.bmm(adjacency, nodes.flatten(2)).view(nodes.shape)
            hidden = F.linear(summed, self.in_weight[layer], self.in_bias[layer])
            nodes = F.linear(self._activation(hidden), self.out_weight[layer], self.out_bias[layer])
        return nodes

    def record(
        self, tape: Tape, sums: NeighbourSums, encoder: tuple[Tensor, Tensor], adjacency: Tensor
    ) -> Var:
        """Encode the nodes' features and pass messages L times, on a tape; tanh only.

        Parameters
        ----------
        sums
            What each node sums in the first layer.
        encoder
            Weight [d, F] and bias [d] of the linear layer that makes node features.
        adjacency
            f32 [b, 2, n, n], as above.

        Returns
        -------
        Var
            f32 [2b, n, c · d].
        """
        weights = (self.in_weight, self.in_bias, self.out_weight, self.out_bias)
        return _record_gin(tape, sums, encoder, adjacency, weights)


def _record_gin(
    tape: Tape,
    sums: NeighbourSums,
    encoder: tuple[Tensor, Tensor],
    adjacency: Tensor,
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
) -> Var:
    """Run a stack with tanh(x) = 2σ(2x) − 1, whose factors and shift go into the weights."""
    leaves = [tape.leaf(tensor) for tensor in (*encoder, *weights)]
    in_weight, in_bias, out_weight, out_bias = weights
    (b, graphs, n, c), d = sums.index.shape, in_weight.shape[2]
    grid, picked = (b * graphs, n, c * d), sums.index.view(-1)
    adjacency = adjacency.flatten(0, 1)
    encode = torch.cat([encoder[0], encoder[1].unsqueeze(1)], dim=1).t()  # [F + 1, d]
    folded = (in_weight * 2, in_bias * 2, out_weight * 2, out_bias - out_weight.sum(2))
    layers = [*zip(*(w.unbind(0) for w in folded), strict=True)]
    x, kept = sums.sums, []
    for layer, (w_in, b_in, w_out, b_out) in enumerate(layers):
        summed = torch.bmm(adjacency, x).view(-1, d) if layer else x.mm(encode)
        hidden = torch.addmm(b_in, summed, w_in.t()).sigmoid_()
        x = torch.addmm(b_out, hidden, w_out.t())
        if layer == 0:
            x = x.index_select(0, picked)
        x = x.view(grid)
        kept.append((summed, hidden))

    def back(grad: Tensor) -> None:
        grad = grad.reshape(-1, d)
        found: list[tuple[Tensor, ...]] = []
        for layer in reversed(range(len(layers))):
            w_in, _, w_out, _ = layers[layer]
            summed, hidden = kept[layer]
            if layer == 0:
                grad = _sum_by_index(grad, picked, len(sums.sums))
            d_out, d_out_bias = grad.t().mm(hidden), grad.sum(0)
            before = torch.ops.aten.sigmoid_backward(grad.mm(w_out), hidden)
            d_in, d_in_bias = before.t().mm(summed), before.sum(0)
            found.append((d_in, d_in_bias, d_out, d_out_bias))
            grad = before.mm(w_in)
            if layer:  # adjacency is symmetric
                grad = torch.bmm(adjacency, grad.view(grid)).view(-1, d)
        d_encode = grad.t().mm(sums.sums)  # [d, F + 1]
        d_in, d_in_bias, d_out, d_out_bias = (
            torch.stack(grads) for grads in zip(*reversed(found), strict=True)
        )
        # x = W (2σ − 1) + b: the shift makes W's gradient 2·dW − db.
        d_out.mul_(2).sub_(d_out_bias.unsqueeze(2))
        gradients = (d_encode[:, :-1], d_encode[:, -1], d_in.mul_(2), d_in_bias.mul_(2))
        for leaf, one in zip(leaves, (*gradients, d_out, d_out_bias), strict=True):
            leaf.add_grad(one)

    result = Var(x)
    tape.record(back, result)
    return result


def _unique_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return different rows [U, k] of rows [r, k], and which of them each is [r].

    By one number for each row, which is checked; ``torch.unique`` of whole rows is slow.
    """
    weights = torch.sin(torch.arange(1, rows.shape[1] + 1, device=rows.device).to(torch.float64))
    numbers, index = torch.unique(rows.to(torch.float64) @ weights, return_inverse=True)
    unique = rows.new_empty(len(numbers), rows.shape[1])
    unique[index] = rows
    if torch.equal(unique.index_select(0, index), rows):
        return unique, index
    unique, index = torch.unique(rows, dim=0, return_inverse=True)
    return unique, index


def _sum_by_index(rows: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum rows [r, d] of the same index [r]: f32 [size, d]."""
    return rows.new_zeros(size, rows.shape[1]).index_add_(0, index, rows)
