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

from ratchet.agents.networks.layers import Initializer, Layer, ready_layers


@dataclass(frozen=True)
class NeighbourSums:
    """What nodes sum over themselves and their neighbours before anything is learned.

    The first layer's sum of encoded features, Σ (W x + b) over a node and its neighbours, is
    W Σx + b · (their number): the sums do not depend on weights, and many nodes have the same
    ones. So the first layer is computed once for each different sum.

    Attributes
    ----------
    sums
        f32 [U, F + 1]: different sums of features, and the number of nodes they go over.
    index
        i64 [b, 2, n, c]: which of them is each node's, in each copy of the features.
    """

    sums: Tensor
    index: Tensor

    @classmethod
    def of(
        cls, features: Tensor | None, adjacency: Tensor, *, bare_copy: bool, share: bool
    ) -> NeighbourSums:
        """Sum features f32 [b, 2, n, F] over adjacency f32 [b, 2, n, n] with self-loops.

        With ``bare_copy`` there is a (further) copy of the nodes whose features are zero; it is the
        only one, of F = 0 features, where features are None. ``share`` finds out which sums are the
        same: worth it for what is used several times.
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
    """L layers of message passing: ``d_model`` is d, ``d_mlp`` is h."""

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
        self._activation_name = activation_name

    def forward(self, sums: Tensor, index: Tensor, adjacency: Tensor) -> Tensor:
        """Pass messages L times: f32 [2b, n, c · d].

        ``sums`` f32 [U, d] are the different sums over nodes and their neighbours in the first
        layer, ``index`` i64 [b, 2, n, c] which of them is each node's, in each copy of the
        features. ``adjacency`` f32 [b, 2, n, n] is symmetric, with self-loops; absent nodes have
        none, so that nothing of theirs is ever read: their own features are meaningless.
        """
        layers: list[Layer] = [(self.in_weight, self.in_bias), (self.out_weight, self.out_bias)]
        size = index.numel() * self.in_weight.shape[1]
        activate, ready = ready_layers(layers, self._activation_name, size)
        stacked = (tensor for layer in ready for tensor in layer if tensor is not None)
        mlps = zip(*(tensor.unbind(0) for tensor in stacked), strict=True)
        adjacency, x = adjacency.flatten(0, 1), sums
        grid = (*adjacency.shape[:2], index.shape[3] * sums.shape[1])
        for layer, (in_weight, in_bias, out_weight, out_bias) in enumerate(mlps):
            if layer:
                x = torch.bmm(adjacency, x.view(grid)).view(-1, sums.shape[1])
            x = F.linear(activate(F.linear(x, in_weight, in_bias)), out_weight, out_bias)
            if layer == 0:
                x = x.index_select(0, index.view(-1))
        return x.view(grid)


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
