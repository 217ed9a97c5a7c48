"""A stack of graph isomorphism network layers (Xu et al. 2019) over dense adjacency matrices.

Each layer sums a node and its neighbours (ε = 0, the paper's GIN-0) in one matrix product and sends
the sum through a two-layer MLP. All layers' weights lie in one tensor, which spares the optimiser
and the backward pass many small ones. Shape letters: g graphs, n nodes, c copies of the features,
d features, h hidden features, L layers.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ratchet.agents.fused import differentiable_gradients, may_fuse
from ratchet.agents.layers import Activation, Initializer, activation, fast_tanh


class GinStack(nn.Module):
    """L layers of message passing.

    Parameters
    ----------
    num_layers, d_model, d_mlp
        L, d, h.
    activation_name
        Between the MLPs' layers; with tanh a fused operation is used.
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
        self._fuses = activation_name == "tanh"

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
        weights = (self.in_weight, self.in_bias, self.out_weight, self.out_bias)
        if self._fuses and may_fuse(nodes):
            return cast(Tensor, _FusedGin.apply(nodes, adjacency, *weights))  # type: ignore[no-untyped-call]
        return _plain_gin(nodes, adjacency, *weights, self._activation)


def _plain_gin(
    nodes: Tensor,
    adjacency: Tensor,
    in_weight: Tensor,
    in_bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    activate: Activation = fast_tanh,
) -> Tensor:
    for layer in range(len(in_weight)):
        summed = torch.bmm(adjacency, nodes.flatten(2)).view(nodes.shape)
        hidden = activate(F.linear(summed, in_weight[layer], in_bias[layer]))
        nodes = F.linear(hidden, out_weight[layer], out_bias[layer])
    return nodes


class _FusedGin(torch.autograd.Function):
    """The same with tanh(x) = 2σ(2x) − 1, whose factors and shift go into the weights."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 -- torch's context
        nodes: Tensor,
        adjacency: Tensor,
        in_weight: Tensor,
        in_bias: Tensor,
        out_weight: Tensor,
        out_bias: Tensor,
    ) -> Tensor:
        g, n, c, d = nodes.shape
        kept = []
        x = nodes.reshape(g, n, c * d)
        folded = (
            (in_weight * 2).mT,
            in_bias * 2,
            (out_weight * 2).mT,
            out_bias - out_weight.sum(2),
        )
        for w_in, b_in, w_out, b_out in zip(*(w.unbind(0) for w in folded), strict=True):
            summed = torch.bmm(adjacency, x).view(-1, d)
            hidden = torch.addmm(b_in, summed, w_in).sigmoid_()
            x = torch.addmm(b_out, hidden, w_out).view(g, n, c * d)
            kept += [summed, hidden]
        ctx.save_for_backward(nodes, adjacency, in_weight, in_bias, out_weight, out_bias, *kept)
        return x.view(g, n, c, d)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        inputs, kept = ctx.saved_tensors[:6], ctx.saved_tensors[6:]
        if torch.is_grad_enabled():
            return differentiable_gradients(_plain_gin, inputs, grad)
        nodes, adjacency, in_weight, in_bias, out_weight, out_bias = inputs
        g, n, c, d = nodes.shape
        in_double, out_double = in_weight * 2, out_weight * 2
        d_in, d_in_bias = torch.empty_like(in_weight), torch.empty_like(in_bias)
        d_out, d_out_bias = torch.empty_like(out_weight), torch.empty_like(out_bias)
        transposed = adjacency.transpose(1, 2)
        grad = grad.reshape(-1, d)
        for layer in reversed(range(len(in_weight))):
            summed, hidden = kept[2 * layer], kept[2 * layer + 1]
            torch.sum(grad, 0, out=d_out_bias[layer])
            torch.mm(grad.t(), hidden, out=d_out[layer])
            before = torch.mm(grad, out_double[layer])
            before = torch.ops.aten.sigmoid_backward(before, hidden)
            torch.sum(before, 0, out=d_in_bias[layer])
            torch.mm(before.t(), summed, out=d_in[layer])
            d_summed = torch.mm(before, in_double[layer]).view(g, n, c * d)
            grad = torch.bmm(transposed, d_summed).view(-1, d)
        # x = W (2σ − 1) + b: the shift makes W's gradient 2·dW − db.
        d_out.mul_(2).sub_(d_out_bias.unsqueeze(2))
        return grad.view(nodes.shape), None, d_in.mul_(2), d_in_bias.mul_(2), d_out, d_out_bias
