"""Graph isomorphism network over dense adjacency matrices, and transformer over pairs of graphs.

Each GIN layer (Xu et al. 2019) sums a node and its neighbours (ε = 0, the paper's GIN-0) in one
matrix product and applies a two-layer MLP to the sum. Transformer layers normalise first (Xiong et
al. 2020). The weights of all layers are in stacked tensors, which saves the optimizer and the
backward pass many small ones. Shape letters: g graphs, n nodes, c copies of the features,
d features, h hidden features, L layers; b rows, T tokens, H heads, e = d / H.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ratchet.agents.networks.layers import Initializer, Layer, ready_layers
from ratchet.fast.dispatch import fast_path
from ratchet.fast.transformer import transform


@dataclass(frozen=True)
class NeighbourSums:
    """Sums of features over nodes and their neighbours, independent of weights.

    The first layer's sum of encoded features, Σ (W x + b) over a node and its neighbours, is W Σx +
    b · (their number): the sums do not depend on weights, and many nodes have equal sums. The first
    layer is therefore computed once per different sum.

    Attributes
    ----------
    sums
        f32 [U, F + 1]: different sums of features, with the numbers of their nodes.
    index
        i64 [b, 2, n, c]: index of each node's sum, in each copy of the features.
    """

    sums: Tensor
    index: Tensor

    @classmethod
    def of(
        cls, features: Tensor | None, adjacency: Tensor, *, bare_copy: bool, share: bool
    ) -> NeighbourSums:
        """Sum features f32 [b, 2, n, F] over adjacency f32 [b, 2, n, n] with self-loops.

        ``bare_copy`` adds a copy of the nodes whose features are zero; it is the only copy, with F
        = 0 features, if features are None. ``share`` finds equal sums, which pays off for sums that
        are used several times.
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
        """Select rows [r] of the b pairs."""
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
        layer, ``index`` i64 [b, 2, n, c] the index of each node's sum, in each copy of the
        features. ``adjacency`` f32 [b, 2, n, n] is symmetric, with self-loops; absent nodes have
        none, so that their features, which are meaningless, are never read.
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


@dataclass(frozen=True)
class TransformerShape:
    """Sizes of a transformer: d, h, H, L; d is a multiple of H."""

    d_model: int
    d_mlp: int
    num_heads: int
    num_layers: int


class TransformerStack(nn.Module):
    """L layers of self-attention and a two-layer MLP, each over normalised input and added to it.

    Dropout, in training mode, is sampled from torch's global generator.
    """

    def __init__(
        self, shape: TransformerShape, *, activation_name: str, dropout: float, init: Initializer
    ) -> None:
        super().__init__()
        layers, d, h = shape.num_layers, shape.d_model, shape.d_mlp
        self.num_heads = shape.num_heads
        self.dropout = dropout
        self.attention_scale, self.attention_shift = init.stacked_norm(layers, d)
        # Rows are ordered (head, query|key|value, feature).
        self.qkv_weight, self.qkv_bias = init.stacked_linear(layers, d, 3 * d)
        self.out_weight, self.out_bias = init.stacked_linear(layers, d, d)
        self.mlp_scale, self.mlp_shift = init.stacked_norm(layers, d)
        self.mlp_in_weight, self.mlp_in_bias = init.stacked_linear(layers, d, h)
        self.mlp_out_weight, self.mlp_out_bias = init.stacked_linear(layers, h, d)
        self.activation_name = activation_name

    def weights(self) -> tuple[Tensor, ...]:
        """Return all weights in the order in which a layer uses them."""
        return (
            self.attention_scale,
            self.attention_shift,
            self.qkv_weight,
            self.qkv_bias,
            self.out_weight,
            self.out_bias,
            self.mlp_scale,
            self.mlp_shift,
            self.mlp_in_weight,
            self.mlp_in_bias,
            self.mlp_out_weight,
            self.mlp_out_bias,
        )

    @fast_path(transform)
    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Transform tokens f32 [b, T, d].

        ``mask`` f32 [b, T, T] (key, query) is 1 where the query attends to the key, else 0. Every
        query attends to something.
        """
        (b, t, d), e = tokens.shape, tokens.shape[2] // self.num_heads
        blocked = (mask == 0).transpose(1, 2).unsqueeze(1)
        w_in, w_out = self.mlp_in_weight, self.mlp_out_weight
        mlp: list[Layer] = [(w_in, self.mlp_in_bias), (w_out, self.mlp_out_bias)]
        activate, ready = ready_layers(mlp, self.activation_name, b * t * w_in.shape[1])
        of_mlp = (tensor for layer in ready for tensor in layer if tensor is not None)
        layers = zip(*self.weights()[:8], *of_mlp, strict=True)
        for scale1, shift1, qkv_w, qkv_b, out_w, out_b, scale2, shift2, w1, b1, w2, b2 in layers:
            normed = F.layer_norm(tokens, (d,), scale1, shift1)
            packed = F.linear(normed, qkv_w, qkv_b).view(b, t, self.num_heads, 3, e)
            query, key, value = packed.permute(3, 0, 2, 1, 4)
            scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(e)
            attention = torch.softmax(scores.masked_fill(blocked, -math.inf), dim=-1)
            mixed = torch.matmul(attention, value).transpose(1, 2).reshape(b, t, d)
            out = F.linear(mixed, out_w, out_b)
            tokens = tokens + self._drop(out)
            normed = F.layer_norm(tokens, (d,), scale2, shift2)
            hidden = activate(F.linear(normed.view(-1, d), w1, b1))
            out = F.linear(hidden, w2, b2).view(b, t, d)
            tokens = tokens + self._drop(out)
        return tokens

    @property
    def drops(self) -> bool:
        """Whether it drops anything now."""
        return bool(self.dropout) and self.training

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout) if self.drops else x


def attention_mask(node_mask: Tensor) -> Tensor:
    """Return the attention mask, f32 [b, T, T] (key, query) with T = 2 + 2n: 1 if attended.

    Pooled tokens attend to all existing nodes (``node_mask`` bool [b, 2, n]). A node attends to the
    pooled tokens and the other graph's nodes, not to its own graph, which the GNN covers. An absent
    node attends like an existing one, but no token attends to it. Each query has at least one key.
    """
    b, _, n = node_mask.shape
    side = torch.arange(2 * n + 2, device=node_mask.device).sub(2).div(n, rounding_mode="floor")
    pooled = side < 0
    structure = pooled.unsqueeze(1) | pooled | (side.unsqueeze(1) != side)
    keys = torch.cat([node_mask.new_ones(b, 2), node_mask.flatten(1)], dim=1)
    return (structure & keys.unsqueeze(2)).to(torch.float32)
