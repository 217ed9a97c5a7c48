"""Recurrent bodies: memories of earlier frames, for agents in environments.

Frames come one at a time in rollouts, [B], and as rows of steps in training, [e, T], in which
gradients propagate through all steps of a row. At the start of a row the recurrent state is that of
the rollout, and zero at the start of an episode.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from ratchet.scenarios.gymnasium.bodies import ControlBody, RecurrentState
from ratchet.scenarios.gymnasium.recurrence import RECURRENCES

if TYPE_CHECKING:
    from tensordict import NestedKey
    from tensordict.nn import TensorDictModuleBase

    from ratchet.agents.networks.layers import Initializer


class RecurrentBody(ControlBody):
    """Body that remembers ``memory_size`` numbers of earlier frames.

    A custom one, named by an agent's ``recurrence``, is created by ``MyBody(inner, size, init)``:
    the body whose features it reads, ``recurrent_size``, and the ``Initializer`` of its weights.
    It implements :meth:`step`, or :meth:`steps` for speed.
    """

    def __init__(self, inner: ControlBody, size: int, init: Initializer) -> None:
        super().__init__()
        self.inner = inner
        self.num_features = self.memory_size = size

    def remember(self, x: Tensor, past: RecurrentState) -> tuple[Tensor, Tensor]:
        """Return features of x f32 [B, d], B frames or e·T, and the memory after each of them."""
        features = self.inner(x).view(*past.begins.shape, -1)
        memory = past.memory[..., : self.memory_size]
        remembered, after = self.steps(features, memory, past.begins)
        return remembered.reshape(-1, self.num_features), after.reshape(-1, self.memory_size)

    def steps(self, features: Tensor, memory: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [*B, num_features], and the memory [*B, memory_size] after each frame.

        *B is B single frames, or e rows of T steps, in which the memory before a step is that after
        the previous one. ``memory`` [*B, memory_size] is that of the rollout before each frame, and
        zero where an episode ``begins``, bool [*B].
        """
        if begins.ndim == 1:
            return self.step(features, memory)
        current, all_steps = memory[:, 0], []
        for index, starts in enumerate(begins.unbind(1)):
            current = current.masked_fill(starts.unsqueeze(-1), 0)
            remembered, current = self.step(features[:, index], current)
            all_steps.append((remembered, current))
        remembered_steps, memories = zip(*all_steps, strict=True)
        return torch.stack(remembered_steps, 1), torch.stack(memories, 1)

    def step(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [B, num_features] and the memory [B, memory_size] after B frames.

        ``features`` are the inner body's, [B, d]; ``memory`` is that before the frames.
        """
        raise NotImplementedError


class _TorchRlBody(RecurrentBody):
    """TorchRL's module of a recurrent layer, with ``num_states`` states of ``size`` numbers."""

    num_states: ClassVar[int]
    num_gates: ClassVar[int]
    layer: ClassVar[type[nn.GRU | nn.LSTM]]

    @abstractmethod
    def make_module(self, layer: Any, **keys: Sequence[NestedKey]) -> TensorDictModuleBase:  # noqa: ANN401
        """Return TorchRL's module of a layer."""

    def __init__(self, inner: ControlBody, size: int, init: Initializer) -> None:
        super().__init__(inner, size, init)
        self.states = [f"state_{index}" for index in range(self.num_states)]
        self.memory_size = size * self.num_states
        d_in = inner.num_features
        network = self.layer(d_in, size, batch_first=True, device=init.device)
        self.recurrent = self.make_module(
            network,
            in_keys=["features", *self.states],
            out_keys=["remembered", *(("next", state) for state in self.states)],
        )
        with torch.no_grad():
            for suffix, width in (("ih", d_in), ("hh", size)):
                layers = [init.linear(width, size) for _ in range(self.num_gates)]
                weight = network.get_parameter(f"weight_{suffix}_l0")
                weight.copy_(torch.cat([layer.weight for layer in layers]))
                bias = network.get_parameter(f"bias_{suffix}_l0")
                bias.copy_(torch.cat([layer.bias for layer in layers]))

    def steps(self, features: Tensor, memory: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the module, to single frames or along rows."""
        from torchrl.modules import set_recurrent_mode

        before = memory.reshape(*begins.shape, self.num_states, 1, self.num_features)
        td = TensorDict(
            {
                "features": features,
                "is_init": begins.unsqueeze(-1),
                **{state: before[..., index, :, :] for index, state in enumerate(self.states)},
            },
            batch_size=begins.shape,
        )
        with set_recurrent_mode(begins.ndim > 1):
            td = self.recurrent(td)
        after = [td["next", state].reshape(-1, self.num_features) for state in self.states]
        return td["remembered"], torch.cat(after, -1)


@RECURRENCES.register("gru")
class GruBody(_TorchRlBody):
    """Gated recurrent unit."""

    num_states, num_gates, layer = 1, 3, nn.GRU

    def make_module(self, layer: nn.GRU, **keys: Sequence[NestedKey]) -> TensorDictModuleBase:
        """Return TorchRL's module of a layer."""
        from torchrl.modules import GRUModule  # heavy, and needed here only

        return GRUModule(gru=layer, **keys)


@RECURRENCES.register("lstm")
class LstmBody(_TorchRlBody):
    """Long short-term memory, with two states."""

    num_states, num_gates, layer = 2, 4, nn.LSTM

    def make_module(self, layer: nn.LSTM, **keys: Sequence[NestedKey]) -> TensorDictModuleBase:
        """Return TorchRL's module of a layer."""
        from torchrl.modules import LSTMModule

        return LSTMModule(lstm=layer, **keys)
