"""A small transformer over the tokens of a pair of graphs.

Layers normalise first (Xiong et al. 2020). All layers' weights lie in stacked tensors. Shape
letters: b rows, T tokens, d features, H heads, e = d / H, h hidden features, L layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ratchet.agents.networks.layers import Initializer, Layer, ready_layers

EPSILON = 1e-5


@dataclass(frozen=True)
class TransformerShape:
    """Sizes of a transformer: d, h, H, L; d is a multiple of H."""

    d_model: int
    d_mlp: int
    num_heads: int
    num_layers: int


class TransformerStack(nn.Module):
    """L layers of self-attention and a two-layer MLP, each over normalised input and added to it.

    Dropout, in training mode, is drawn from torch's global generator.
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
            normed = F.layer_norm(tokens, (d,), scale1, shift1, EPSILON)
            packed = F.linear(normed, qkv_w, qkv_b).view(b, t, self.num_heads, 3, e)
            query, key, value = packed.permute(3, 0, 2, 1, 4)
            scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(e)
            attention = torch.softmax(scores.masked_fill(blocked, -math.inf), dim=-1)
            mixed = torch.matmul(attention, value).transpose(1, 2).reshape(b, t, d)
            out = F.linear(mixed, out_w, out_b)
            tokens = tokens + self._drop(out)
            normed = F.layer_norm(tokens, (d,), scale2, shift2, EPSILON)
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
    """Return who attends to whom, f32 [b, T, T] (key, query) with T = 2 + 2n: 1 where attended.

    Pooled tokens attend to everything that exists, as ``node_mask`` bool [b, 2, n] says. A node
    attends to the pooled tokens and the other graph's nodes, not to itself nor its own graph: the
    GNN has seen to those. An absent node attends like one that exists, and nobody attends to it. No
    query is without keys.
    """
    b, _, n = node_mask.shape
    side = torch.arange(2 * n + 2, device=node_mask.device).sub(2).div(n, rounding_mode="floor")
    pooled = side < 0
    structure = pooled.unsqueeze(1) | pooled | (side.unsqueeze(1) != side)
    keys = torch.cat([node_mask.new_ones(b, 2), node_mask.flatten(1)], dim=1)
    return (structure & keys.unsqueeze(2)).to(torch.float32)
