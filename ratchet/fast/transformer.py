"""A stack of transformer layers as one operation with a hand-written derivative, for CPUs.

Layouts are chosen to avoid copies: queries, keys and values are [b·H, e, T] and attention is stored
as [b·H, key, query], where products with thin matrices are fastest. The softmax is 2^s / Σ 2^s
without a maximum; scores are clamped at ±80 instead, far outside the usual range (log₂ units), with
the gradient passing through. tanh(x) = 2σ(2x) − 1 has its factors and shift in the weights. Shape
letters as in :mod:`ratchet.scenarios.graph_isomorphism.graph_networks`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from ratchet.fast.dispatch import is_supported, only_plain_operations

CUT = 80.0
EPSILON = 1e-5
Kept = tuple[Tensor, ...]
Grads = Sequence[Tensor]


class Stack(Protocol):
    """Attributes of ``TransformerStack`` that this module reads."""

    activation_name: str
    num_heads: int

    @property
    def drops(self) -> bool:
        """Whether dropout is active."""

    def weights(self) -> tuple[Tensor, ...]:
        """Return all weights in the order in which a layer uses them."""

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Transform tokens with plain operations."""


def transform(stack: Stack, tokens: Tensor, mask: Tensor) -> Tensor | None:
    """Compute the stack's ``forward``; None unless it has tanh and drops nothing."""
    if stack.activation_name != "tanh" or stack.drops or not is_supported(tokens):
        return None
    return cast(
        Tensor,
        _Transform.apply(stack, mask, tokens, *stack.weights()),  # type: ignore[no-untyped-call]
    )


class _Transform(torch.autograd.Function):
    """All layers as one operation of autograd."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 -- torch's context
        stack: Stack,
        mask: Tensor,
        tokens: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(tokens, *weights)  # detects changes before the backward pass
        folds = _Folds.of(weights[2].shape[2], stack.num_heads)
        layers = [*zip(*(weight.unbind(0) for weight in folds.fold(weights)), strict=True)]
        x, per_head = tokens.contiguous(), mask.unsqueeze(1)
        saved = []
        for layer in layers:
            x, attention = _attend(x, per_head, layer[:6], stack.num_heads)
            x, mlp = _transform(x, layer[6:])
            saved.append((attention, mlp))
        ctx.stack, ctx.mask, ctx.folds, ctx.layers, ctx.kept = stack, mask, folds, layers, saved
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        _, *weights = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, None, *_differentiable_gradients(ctx, grad)
        folds, grad = ctx.folds, grad.contiguous()
        layer_grads: list[Grads] = []
        for_back = folds.fold_back(weights[2]).unbind(0)
        steps = [*zip(ctx.layers, for_back, ctx.kept, strict=True)]
        for layer, qkv_w, (attention, mlp) in reversed(steps):
            grad, of_mlp = _transform_back(grad, mlp, layer[6:])
            weights_back = (*layer[:2], qkv_w, *layer[3:6])
            grad, of_attention = _attend_back(grad, attention, weights_back, ctx.stack.num_heads)
            layer_grads.append((*of_attention, *of_mlp))
        return None, None, grad, *folds.unfold(_stack_layers(layer_grads[::-1]))


def _differentiable_gradients(ctx: Any, grad: Tensor) -> list[Tensor | None]:  # noqa: ANN401
    """Compute gradients by plain operations, so that they can be differentiated again."""
    inputs = ctx.saved_tensors
    with only_plain_operations():
        out = ctx.stack.forward(inputs[0], ctx.mask)
    required = [tensor for tensor in inputs if tensor.requires_grad]
    gradients = iter(torch.autograd.grad(out, required, grad, create_graph=True, allow_unused=True))
    return [next(gradients) if tensor.requires_grad else None for tensor in inputs]


def _stack_layers(layers: Sequence[Grads]) -> list[Tensor]:
    """Stack the layers' gradients like the weights."""
    if len(layers) == 1:
        return [grad.unsqueeze(0) for grad in layers[0]]
    return [torch.stack(grads) for grads in zip(*layers, strict=True)]


@dataclass(frozen=True)
class _Folds:
    """Folds constant factors into the weights, for all layers together.

    Queries are scaled by log₂(e)/√e, so that 2^s is the softmax's exponential; the gradients of
    queries and keys lack factors, which go into the weights they meet next. To the values of each
    head a row of ones is added, which makes the sum over keys a part of the product with values.

    Attributes
    ----------
    ahead, behind
        [H (3e + 1), 3d]: from rows (head, query|key|value, feature) to those used here.
    ones
        [H (3e + 1)]: 1 in the added rows.
    """

    ahead: Tensor
    behind: Tensor
    ones: Tensor

    @classmethod
    @functools.cache
    def of(cls, d: int, num_heads: int) -> _Folds:
        """Create the factors of a transformer of d features."""
        e = d // num_heads
        root = 1 / math.sqrt(e)
        per_head = torch.cat([torch.eye(3 * e), torch.zeros(1, 3 * e)])
        every = torch.kron(torch.eye(num_heads), per_head)

        def scaled(query: float, key: float) -> Tensor:
            factors = torch.tensor([query, key, 1.0]).repeat_interleave(e).repeat(num_heads)
            return every * factors

        ones = torch.zeros(num_heads, 3 * e + 1)
        ones[:, -1] = 1
        return cls(scaled(root / math.log(2), 1.0), scaled(root, math.log(2)), ones.flatten())

    def fold(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Return the weights used going ahead, in the weights' order."""
        scale1, shift1, qkv_w, qkv_b, out_w, out_b, scale2, shift2, w1, b1, w2, b2 = weights
        qkv_w, qkv_b = (
            torch.matmul(self.ahead, qkv_w),
            torch.addmm(self.ones, qkv_b, self.ahead.t()),
        )
        attention = [scale1, shift1, qkv_w, qkv_b, out_w, out_b]
        return [*attention, scale2, shift2, w1 * 2, b1 * 2, w2 * 2, b2 - w2.sum(2)]

    def fold_back(self, qkv_w: Tensor) -> Tensor:
        """Return weights of queries, keys and values used going back; the others are the same."""
        return torch.matmul(self.behind, qkv_w)

    def unfold(self, grads: list[Tensor]) -> list[Tensor]:
        """Turn gradients of folded weights into those of the weights."""
        grads[2] = torch.matmul(self.behind.t(), grads[2])
        grads[3] = grads[3].mm(self.behind)
        grads[8] = grads[8] * 2
        grads[9] = grads[9] * 2
        grads[10] = grads[10] * 2 - grads[11].unsqueeze(2)
        return grads


def _attend(
    x: Tensor, mask: Tensor, weights: tuple[Tensor, ...], num_heads: int
) -> tuple[Tensor, Kept]:
    """Add attention to x [b, T, d]."""
    scale, shift, qkv_w, qkv_b, out_w, out_b = weights
    b, t, d = x.shape
    e = d // num_heads
    normed, mean, rstd = torch.native_layer_norm(x, [d], scale, shift, EPSILON)
    qkv = torch.baddbmm(
        qkv_b.unsqueeze(1), qkv_w.expand(b, *qkv_w.shape), normed.transpose(1, 2)
    ).view(b * num_heads, 3 * e + 1, t)
    query, key, value = qkv.split_with_sizes([e, e, e + 1], dim=1)
    powers = torch.bmm(key.transpose(1, 2), query).clamp_(-CUT, CUT).exp2_()
    powers.view(b, num_heads, t, t).mul_(mask)
    summed = torch.bmm(value, powers)
    total = summed[:, e:]
    mixed = summed[:, :e] / total
    out = torch.baddbmm(x, mixed.view(b, d, t).transpose(1, 2), out_w.t().expand(b, d, d))
    return out.add_(out_b), (x, normed, mean, rstd, qkv, powers, total, mixed)


def _attend_back(
    grad: Tensor, saved: Kept, weights: tuple[Tensor, ...], num_heads: int
) -> tuple[Tensor, Grads]:
    """Return the gradients of x and of the weights from that of :func:`_attend`'s output."""
    x, normed, mean, rstd, qkv, powers, total, mixed = saved
    scale, shift, qkv_w, _, out_w, _ = weights
    b, t, d = x.shape
    e = d // num_heads
    query, key, value = qkv.split_with_sizes([e, e, e + 1], dim=1)
    by_feature = grad.transpose(1, 2)
    d_out_b = grad.view(-1, d).sum(0)
    d_out_w = torch.bmm(by_feature, mixed.view(b, d, t).transpose(1, 2)).sum(0)
    d_mixed = torch.bmm(out_w.t().expand(b, d, d), by_feature).view(mixed.shape).div_(total)
    d_total = (d_mixed * mixed).sum(1, keepdim=True).neg_()
    d_summed = torch.cat([d_mixed, d_total], dim=1)
    d_scores = torch.bmm(value.transpose(1, 2), d_summed).mul_(powers)
    d_qkv = torch.cat(
        [
            torch.bmm(key, d_scores),
            torch.bmm(query, d_scores.transpose(1, 2)),
            torch.bmm(d_summed, powers.transpose(1, 2)),
        ],
        dim=1,
    ).view(b, -1, t)
    d_qkv_w, d_qkv_b = torch.bmm(d_qkv, normed).sum(0), d_qkv.sum((0, 2))
    d_normed = torch.bmm(d_qkv.transpose(1, 2), qkv_w.expand(b, *qkv_w.shape))
    d_x, d_scale, d_shift = _norm_back(d_normed, (x, mean, rstd, scale, shift))
    return d_x.add_(grad), (d_scale, d_shift, d_qkv_w, d_qkv_b, d_out_w, d_out_b)


def _transform(x: Tensor, weights: tuple[Tensor, ...]) -> tuple[Tensor, Kept]:
    """Add the MLP to x [b, T, d]."""
    scale, shift, w1, b1, w2, b2 = weights
    d = x.shape[2]
    normed, mean, rstd = torch.native_layer_norm(x, [d], scale, shift, EPSILON)
    hidden = torch.addmm(b1, normed.view(-1, d), w1.t()).sigmoid_()
    out = torch.addmm(x.view(-1, d), hidden, w2.t()).add_(b2)
    return out.view(x.shape), (x, normed, mean, rstd, hidden)


def _transform_back(grad: Tensor, saved: Kept, weights: tuple[Tensor, ...]) -> tuple[Tensor, Grads]:
    """Return the gradients of x and of the weights from that of :func:`_transform`'s output."""
    x, normed, mean, rstd, hidden = saved
    scale, shift, w1, _, w2, _ = weights
    flat = grad.view(-1, x.shape[2])
    d_w2, d_b2 = flat.t().mm(hidden), flat.sum(0)
    before = torch.ops.aten.sigmoid_backward(flat.mm(w2), hidden)
    d_w1, d_b1 = before.t().mm(normed.view(flat.shape)), before.sum(0)
    d_x, d_scale, d_shift = _norm_back(before.mm(w1).view(x.shape), (x, mean, rstd, scale, shift))
    return d_x.add_(grad), (d_scale, d_shift, d_w1, d_b1, d_w2, d_b2)


def _norm_back(grad: Tensor, saved: Kept) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a layer norm's gradients of x, scale and shift."""
    x, mean, rstd, scale, shift = saved
    return cast(
        tuple[Tensor, Tensor, Tensor],
        torch.ops.aten.native_layer_norm_backward(
            grad, x, [x.shape[2]], mean, rstd, scale, shift, [True, True, True]
        ),
    )
