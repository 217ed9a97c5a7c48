"""The transformer stack as one operation with a hand-written backward pass, for CPUs.

Layouts are chosen so that nothing is copied: queries, keys and values are [b·H, e, T] and attention
is kept as [b·H, key, query], where products with thin matrices are fastest. The softmax is
2^s / Σ 2^s without a maximum; scores are cut at ±80 instead, far outside what occurs (log₂ units),
with the gradient passing through. tanh(x) = 2σ(2x) − 1 has its factors and shift in the weights.
Shape letters as in :mod:`ratchet.scenarios.graph_isomorphism.transformer`.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from ratchet.agents.fused import differentiable_gradients
from ratchet.agents.layers import fast_tanh

EPSILON = 1e-5
CUT = 80.0
NUM_WEIGHTS = 12
Grads = list[Tensor]


def fused_transformer(
    tokens: Tensor, mask: Tensor, weights: tuple[Tensor, ...], num_heads: int
) -> Tensor:
    """Transform tokens f32 [b, T, d]; ``weights`` as ``TransformerStack.weights`` gives them."""
    return cast(Tensor, _Fused.apply(num_heads, tokens, mask, *weights))  # type: ignore[no-untyped-call]


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 -- torch's context
        num_heads: int,
        tokens: Tensor,
        mask: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        x = tokens.contiguous()
        per_head = mask.unsqueeze(1)
        kept: list[Tensor] = []
        for layer in _by_layer(_fold(weights, num_heads)):
            x, attention = _attend(x, per_head, layer[:6], num_heads)
            kept += attention
            x, mlp = _transform(x, layer[6:])
            kept += mlp
        ctx.num_heads = num_heads
        ctx.save_for_backward(tokens, mask, *weights, *kept)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        saved, num_heads = ctx.saved_tensors, ctx.num_heads
        if torch.is_grad_enabled():
            inputs = saved[: 2 + NUM_WEIGHTS]
            return None, *differentiable_gradients(_plain(num_heads), inputs, grad)
        weights, kept = saved[2 : 2 + NUM_WEIGHTS], saved[2 + NUM_WEIGHTS :]
        layers = _by_layer(_fold(weights, num_heads, backward=True))
        grads = [torch.empty_like(weight) for weight in weights]
        size = len(kept) // len(layers)
        x_grad = grad.contiguous()
        for layer, (own, into) in reversed(
            [*enumerate(zip(layers, _by_layer(grads), strict=True))]
        ):
            values = kept[layer * size : (layer + 1) * size]
            x_grad = _transform_back(x_grad, values[_ATTENTION_KEPT:], own[6:], into[6:])
            x_grad = _attend_back(x_grad, values[:_ATTENTION_KEPT], own[:6], into[:6], num_heads)
        _unfold(grads, num_heads)
        return None, x_grad, None, *grads


def _by_layer(stacked: list[Tensor]) -> list[list[Tensor]]:
    """Take stacked weights apart: for each layer its own."""
    return [list(layer) for layer in zip(*(weight.unbind(0) for weight in stacked), strict=True)]


def _plain(num_heads: int) -> Any:  # noqa: ANN401 -- a function of tensors
    from ratchet.scenarios.graph_isomorphism.transformer import plain_transformer

    def plain(tokens: Tensor, mask: Tensor, *weights: Tensor) -> Tensor:
        return plain_transformer(tokens, mask, *weights, num_heads=num_heads, activate=fast_tanh)

    return plain


def _row_scale(d: int, num_heads: int, query: float, key: float, like: Tensor) -> Tensor:
    """Factors for rows of (head, query|key|value, feature): [3d]."""
    factors = like.new_tensor([query, key, 1.0])
    return factors.repeat_interleave(d // num_heads).repeat(num_heads)


def _fold(weights: tuple[Tensor, ...], num_heads: int, *, backward: bool = False) -> list[Tensor]:
    """Put constant factors into the weights, for all layers at once.

    Queries are scaled by log₂(e)/√e, so that 2^s is the softmax's exponential. Backwards, the
    gradients of queries and keys lack factors, which go into the weights they meet next.
    """
    scale1, shift1, qkv_w, qkv_b, out_w, out_b, scale2, shift2, w1, b1, w2, b2 = weights
    d = qkv_w.shape[2]
    root = 1 / math.sqrt(d // num_heads)
    query, key = (root, math.log(2)) if backward else (root / math.log(2), 1.0)
    rows = _row_scale(d, num_heads, query, key, qkv_w)
    return [  # in the weights' order
        scale1,
        shift1,
        qkv_w * rows.unsqueeze(1),
        qkv_b * rows,
        out_w,
        out_b,
        scale2,
        shift2,
        w1 * 2,
        b1 * 2,
        w2 * 2,
        b2 - w2.sum(2),
    ]


def _unfold(grads: Grads, num_heads: int) -> None:
    """Turn gradients of folded weights into those of the weights, in place."""
    d = grads[2].shape[2]
    rows = _row_scale(d, num_heads, 1 / math.sqrt(d // num_heads), math.log(2), grads[2])
    grads[2].mul_(rows.unsqueeze(1))
    grads[3].mul_(rows)
    grads[8].mul_(2)
    grads[9].mul_(2)
    grads[10].mul_(2).sub_(grads[11].unsqueeze(2))


_ATTENTION_KEPT = 8


def _attend(
    x: Tensor, mask: Tensor, weights: list[Tensor], num_heads: int
) -> tuple[Tensor, list[Tensor]]:
    """Add attention to x [b, T, d]."""
    scale, shift, qkv_w, qkv_b, out_w, out_b = weights
    b, t, d = x.shape
    normed, mean, rstd = torch.native_layer_norm(x, [d], scale, shift, EPSILON)
    qkv = torch.baddbmm(qkv_b.unsqueeze(1), qkv_w.expand(b, 3 * d, d), normed.transpose(1, 2))
    query, key, value = qkv.view(b * num_heads, -1, t).chunk(3, dim=1)
    powers = torch.bmm(key.transpose(1, 2), query).clamp_(-CUT, CUT).exp2_()
    powers.view(b, num_heads, t, t).mul_(mask)
    total = powers.sum(1, keepdim=True)
    mixed = torch.bmm(value, powers).div_(total)
    out = torch.baddbmm(x, mixed.view(b, d, t).transpose(1, 2), out_w.t().expand(b, d, d))
    return out.add_(out_b), [x, normed, mean, rstd, qkv, powers, total, mixed]


def _attend_back(
    grad: Tensor, kept: Grads, weights: list[Tensor], into: Grads, num_heads: int
) -> Tensor:
    """Give the gradient of x from that of :func:`_attend`'s output, and fill the weights'."""
    x, normed, mean, rstd, qkv, powers, total, mixed = kept
    scale, shift, qkv_w, _, out_w, _ = weights
    b, t, d = x.shape
    query, key, value = qkv.view(b * num_heads, -1, t).chunk(3, dim=1)
    torch.sum(grad.view(-1, d), 0, out=into[5])
    by_feature = grad.transpose(1, 2)
    torch.sum(torch.bmm(by_feature, mixed.view(b, d, t).transpose(1, 2)), 0, out=into[4])
    d_mixed = torch.bmm(out_w.t().expand(b, d, d), by_feature).view(mixed.shape).div_(total)
    d_scores = torch.bmm(value.transpose(1, 2), d_mixed)
    d_scores.sub_((d_mixed * mixed).sum(1, keepdim=True)).mul_(powers)
    d_qkv = torch.cat(
        [
            torch.bmm(key, d_scores),
            torch.bmm(query, d_scores.transpose(1, 2)),
            torch.bmm(d_mixed, powers.transpose(1, 2)),
        ],
        dim=1,
    ).view(b, 3 * d, t)
    torch.sum(torch.bmm(d_qkv, normed), 0, out=into[2])
    torch.sum(d_qkv, (0, 2), out=into[3])
    d_normed = torch.bmm(d_qkv.transpose(1, 2), qkv_w.expand(b, 3 * d, d))
    return _norm_back(grad, d_normed, (x, mean, rstd, scale, shift), into)


def _transform(x: Tensor, weights: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Add the MLP to x [b, T, d]."""
    scale, shift, w1, b1, w2, b2 = weights
    d = x.shape[2]
    normed, mean, rstd = torch.native_layer_norm(x, [d], scale, shift, EPSILON)
    hidden = torch.addmm(b1, normed.view(-1, d), w1.t()).sigmoid_()
    out = torch.addmm(x.view(-1, d), hidden, w2.t()).add_(b2)
    return out.view(x.shape), [x, normed, mean, rstd, hidden]


def _transform_back(grad: Tensor, kept: Grads, weights: list[Tensor], into: Grads) -> Tensor:
    """Give the gradient of x from that of :func:`_transform`'s output, and fill the weights'."""
    x, normed, mean, rstd, hidden = kept
    scale, shift, w1, _, w2, _ = weights
    flat = grad.view(-1, x.shape[2])
    torch.sum(flat, 0, out=into[5])
    torch.mm(flat.t(), hidden, out=into[4])
    before = torch.ops.aten.sigmoid_backward(torch.mm(flat, w2), hidden)
    torch.sum(before, 0, out=into[3])
    torch.mm(before.t(), normed.view(flat.shape), out=into[2])
    d_normed = torch.mm(before, w1).view(x.shape)
    return _norm_back(grad, d_normed, (x, mean, rstd, scale, shift), into)


def _norm_back(grad: Tensor, d_normed: Tensor, kept: tuple[Tensor, ...], into: Grads) -> Tensor:
    """Go back through a layer norm, and add the gradient that went past it."""
    x, mean, rstd, scale, shift = kept
    d_x, d_scale, d_shift = torch.ops.aten.native_layer_norm_backward(
        d_normed, x, [x.shape[2]], mean, rstd, scale, shift, [True, True, True]
    )
    into[0].copy_(d_scale)
    into[1].copy_(d_shift)
    return cast(Tensor, d_x.add_(grad))
