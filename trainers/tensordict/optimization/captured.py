"""Updates of small networks as CUDA graphs.

The host launches their kernels one at a time more slowly than a GPU executes them. A graph launches
all of them together, with the addresses and numbers of one call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ratchet.agents.actor_critic import TURNS, Key
from ratchet.agents.networks.layers import is_unchanged_within
from ratchet.fast.adam import FusedAdam
from ratchet.plugins import is_framework
from trainers.tensordict.optimization.replay import RolloutBuffer

if TYPE_CHECKING:
    from trainers.staged import StagedTrainer
    from trainers.tensordict.states.components import Components

DEVICE_TYPE = "cuda"
_MOST_WEIGHTS = 1_000_000
"""Above, kernels should take longer than launches, and padding cost more; not measured."""
Losses = Mapping[str, Tensor]
Update = Callable[[TensorDictBase], Losses]
logger = logging.getLogger(__name__)


def can_capture(trainer: StagedTrainer, parts: Components) -> bool:
    """Return whether a CUDA graph can repeat updates: without custom code, hooks and noise."""
    if torch.device(trainer.settings.device).type != DEVICE_TYPE:
        return False
    loss, hyper_params = parts.loss_module, trainer.hyper_params
    sections = [hyper_params.agents[name] for name in parts.agents.agent_names]
    kinds = set(map(type, loss.modules()))
    kinds = {k for k in kinds if is_framework(k.__module__) or k.__module__.startswith("torch.nn")}
    return (
        vars(type(loss)).get("can_be_captured", False)
        and not (loss.is_compiled or hyper_params.rl.mixed_precision or trainer.callbacks)
        and not any(getattr(section, "noise_sigma", 0) for section in sections)
        and not any(getattr(section, "transformer_dropout", 0) for section in sections)
        and (type(parts.optimizer), type(parts.replay_buffer)) == (FusedAdam, RolloutBuffer)
        and is_framework(type(trainer).__module__)
        and sum(weight.numel() for weight in loss.parameters()) <= _MOST_WEIGHTS
        and is_unchanged_within(nn.ModuleList([loss]), kinds)
        and not _mixes_rows(loss)
    )


def _mixes_rows(network: nn.Module) -> bool:
    """Return whether layers of custom networks average over padding, or layers are random."""
    return any(
        (isinstance(part, _BatchNorm) and not is_framework(type(parent).__module__))
        or (isinstance(part, _DropoutNd) and part.p > 0)
        for parent in network.modules()
        for part in parent.children()
    )


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    losses: Losses
    addresses: list[int]

    def replay(self, inputs: list[Tensor]) -> Losses:
        torch._foreach_copy_(self.inputs, inputs)
        self.graph.replay()
        return {name: loss.clone() for name, loss in self.losses.items()}


class CapturedUpdates:
    """Updates of agents, with one graph for each shape of minibatches and set of learning agents.

    The first minibatch of a kind is computed normally, and then captured. Agents that do not act in
    a minibatch are left out, since the optimizer skips parameters without gradients.
    """

    def __init__(self, parts: Components) -> None:
        self._parts = parts
        self._graphs: dict[Hashable, _Graph | None] = {}

    def start_iteration(self) -> tuple[Key, ...]:
        """Prepare frames and learning rates, drop stale graphs; return the keys of minibatches."""
        parts, frames = self._parts, self._parts.replay_buffer.frames
        frames.set(TURNS, parts.agents.padded_turns(frames))
        for group in parts.optimizer.param_groups:
            rate = torch.empty((), device=group["params"][0].device)
            group.setdefault("lr_on_device", rate).fill_(group["lr"])
        now = self._addresses()
        self._graphs = {
            k: one for k, one in self._graphs.items() if not one or one.addresses == now
        }
        return (*(parts.loss_module.in_keys or ()), TURNS)

    def stop(self) -> None:
        """Free the graphs, and let the optimizer read its own learning rates."""
        self._graphs.clear()
        for group in self._parts.optimizer.param_groups:
            group.pop("lr_on_device", None)

    def run(self, update: Update, batches: Iterable[TensorDictBase]) -> Iterator[Losses]:
        """Update the agents on minibatches ``[B]``; iterate over the results of ``update``."""
        loss, batches = self._parts.loss_module, list(batches)
        learning = loss.learning_agents
        for batch, names in zip(batches, self._learning_in(batches), strict=True):
            loss.select_agents(names)
            losses = self._run(update, batch, names)
            loss.select_agents(learning)
            yield losses

    def _learning_in(self, batches: Sequence[TensorDictBase]) -> list[tuple[str, ...]]:
        """Return the learning agents that are computed in each minibatch."""
        agents, learning = self._parts.agents, self._parts.loss_module.learning_agents
        names = agents.agent_names if learning is None else learning
        if agents.has_fixed_shapes:
            return [tuple(names)] * len(batches)
        acting = torch.stack([batch.get(("agents", "active")).any(-1).any(0) for batch in batches])
        table = [dict(zip(agents.agent_names, row, strict=True)) for row in acting.tolist()]
        return [tuple(name for name in names if row[name]) for row in table]

    def _run(self, update: Update, batch: TensorDictBase, names: tuple[str, ...]) -> Losses:
        inputs = list(batch.values(include_nested=True, leaves_only=True))
        key = (names, *(tensor.shape for tensor in inputs))
        if graph := self._graphs.get(key):
            return graph.replay(inputs)
        losses = update(batch)  # creates handles, workspaces and the optimizer's state, too
        if names and key not in self._graphs:
            self._graphs[key] = self._capture(update, batch.clone())
        return losses

    def _capture(self, update: Update, batch: TensorDictBase) -> _Graph | None:
        """Capture an update without executing it; None if that fails."""
        inputs = list(batch.values(include_nested=True, leaves_only=True))
        try:
            with torch.cuda.device(inputs[0].device):
                graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    losses = update(batch)
        except RuntimeError as error:  # e.g. an operation that waits for the device
            logger.warning("updates run without a CUDA graph, which is slower: %s", error)
            return None
        return _Graph(graph, inputs, losses, self._addresses())

    def _addresses(self) -> list[int]:
        """Return the addresses of everything that updates read except minibatches."""
        loss, optimizer = self._parts.loss_module, self._parts.optimizer
        tensors = [*loss.parameters(), *loss.buffers()]
        for group in optimizer.param_groups:
            states = [optimizer.state.get(param, {}) for param in group["params"]]
            tensors += [group["lr_on_device"], *(s[name] for s in states for name in sorted(s))]
        return [tensor.data_ptr() for tensor in tensors]
