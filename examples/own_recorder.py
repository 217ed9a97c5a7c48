"""Custom network on the fast path: a plain module and its recorder.

The network does not depend on tapes; without the recorder it also works, only slower. See
``docs/guides/networks.md``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ratchet.agents.tapes import Record, Tape, Var, register_recorder


class ResidualBlock(nn.Module):
    """Perceptron with a residual connection, f32 [B, d]."""

    def __init__(self, d: int, d_hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(d, d_hidden)
        self.outer = nn.Linear(d_hidden, d)

    def forward(self, x: Tensor) -> Tensor:
        """Compute x + W tanh(V x + b) + c."""
        out: Tensor = x + self.outer(torch.tanh(self.inner(x)))
        return out


@register_recorder(ResidualBlock, parts=[nn.Linear])
def record_residual_block(block: ResidualBlock, x: Tensor) -> Record:
    """Record the block as one step of a tape."""

    def record(tape: Tape) -> list[Var]:
        rows = tape.leaf(x)
        v, b = tape.leaf(block.inner.weight), tape.leaf(block.inner.bias)
        w, c = tape.leaf(block.outer.weight), tape.leaf(block.outer.bias)
        hidden = torch.addmm(b.value, x, v.value.t()).tanh_()
        out = Var(torch.addmm(c.value, hidden, w.value.t()).add_(x))

        def back(grad: Tensor) -> None:
            w.add_grad(grad.t().mm(hidden))
            c.add_grad(grad.sum(0))
            inner = grad.mm(w.value) * (1 - hidden.square())
            v.add_grad(inner.t().mm(x))
            b.add_grad(inner.sum(0))
            rows.add_grad(torch.addmm(grad, inner, v.value))

        tape.record(back, out)
        return [out]

    return record
