"""Bodies that remember: TorchRL's GRU or LSTM over another body's features.

Frames come one by one while playing, [B], and as rows of steps in training, [e, T]: then gradients
go back through all steps of a row. What is remembered is as it was in the rollout where a row
begins, and nothing where an episode does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from ratchet.agents.networks.layers import Initializer
from ratchet.agents.parts import AgentPart

if TYPE_CHECKING:
    from ratchet.scenarios.gymnasium.bodies import Body, ConvolutionalBody
    from ratchet.scenarios.gymnasium.sight import Past

_NUM_GATES = {"gru": 3, "lstm": 4}
_NUM_STATES = {"gru": 1, "lstm": 2}


class RecurrentBody(AgentPart):
    """Remembers ``size`` numbers (``lstm``: two states of as many) of the features before.

    What it is given to remember may be wider: the first numbers are its own.
    """

    def __init__(
        self, inner: Body | ConvolutionalBody, kind: str, size: int, init: Initializer
    ) -> None:
        from torchrl.modules import GRUModule, LSTMModule  # heavy, and needed here only

        super().__init__()
        self.inner = inner
        self.num_features = self.size = size
        states = [f"state_{index}" for index in range(_NUM_STATES[kind])]
        self.states = states
        self.memory_size = size * len(states)
        keys = {
            "in_keys": ["features", *states],
            "out_keys": ["remembered", *(("next", state) for state in states)],
        }
        d_in, gates = inner.num_features, _NUM_GATES[kind]
        network: nn.GRU | nn.LSTM
        if kind == "gru":
            network = nn.GRU(d_in, size, batch_first=True, device=init.device)
            self.recurrent = GRUModule(gru=network, **keys)
        else:
            network = nn.LSTM(d_in, size, batch_first=True, device=init.device)
            self.recurrent = LSTMModule(lstm=network, **keys)
        with torch.no_grad():
            for suffix, width in (("ih", d_in), ("hh", size)):
                layers = [init.linear(width, size) for _ in range(gates)]
                weight, bias = f"weight_{suffix}_l0", f"bias_{suffix}_l0"
                getattr(network, weight).copy_(torch.cat([layer.weight for layer in layers]))
                getattr(network, bias).copy_(torch.cat([layer.bias for layer in layers]))

    def forward(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor]:
        """Make features of x f32 [B, d], B frames or e·T; return them, and what is remembered then.

        Features are [B, size], what is remembered [B, memory_size].
        """
        from torchrl.modules import set_recurrent_mode

        shape = past.begins.shape
        features = self.inner(x).view(*shape, -1)
        own = past.memory[..., : self.memory_size]
        before = own.reshape(*shape, len(self.states), 1, self.size)
        td = TensorDict(
            {
                "features": features,
                "is_init": past.begins.unsqueeze(-1),
                **{state: before[..., index, :, :] for index, state in enumerate(self.states)},
            },
            batch_size=shape,
        )
        with set_recurrent_mode(len(shape) > 1):
            td = self.recurrent(td)
        after = [td["next", state].reshape(-1, self.size) for state in self.states]
        return td["remembered"].reshape(-1, self.size), torch.cat(after, -1)
