"""Networks sharded over processes: each keeps a shard and gathers weights when needed.

Uses torch's ``fully_shard`` (FSDP2). Gradients of all processes are summed, not averaged: their
batches add up to one loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def shard_network(
    network: nn.Module,
    mesh: DeviceMesh,
    *,
    layers: Sequence[nn.Module] = (),
    methods: Sequence[str] = (),
) -> None:
    """Keep this process's shard of a network's weights, on the mesh's device.

    Parameters
    ----------
    layers
        Modules that are gathered one at a time; the rest is gathered together.
    methods
        Methods that read the network, in addition to ``forward``.
    """
    if isinstance(network, FSDPModule):
        return  # shared by two models, with and without its adapter
    for part in (*layers, network):
        # reshard after forward, the root too: weights that are loaded in place are read next
        fully_shard(part, mesh=mesh, reshard_after_forward=True)
        assert isinstance(part, FSDPModule)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
        # an expert that was used only in some processes
        part.set_reduce_scatter_unused_params(True, recurse=False)
    for name in methods:
        register_fsdp_forward_method(network, name)


def local_shard(tensor: Tensor) -> Tensor:
    """Return this process's shard of a tensor, sharing memory; all of an unsharded one."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather(share: Tensor, like: Tensor) -> Tensor:
    """Gather a tensor that is sharded like another; a collective operation."""
    if not isinstance(like, DTensor):
        return share
    laid_out = DTensor.from_local(
        share, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
    )
    return laid_out.full_tensor()


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a copy of this process's shard of a complete tensor.

    All of it if ``like`` is not sharded.
    """
    if isinstance(like, DTensor):
        rows = -(-len(like) // like.device_mesh.size())
        first = like.device_mesh.get_local_rank() * rows
        tensor = tensor[first : first + rows]
    return tensor.to(like.device, copy=True)


def contribution(shard: Tensor, like: Tensor) -> Tensor:
    """Return this process's rows of a tensor: the rows of all processes together are complete.

    Of a tensor that is not sharded, the first process returns all rows.
    """
    is_shared = isinstance(like, DTensor) or not shard.ndim
    return shard if is_shared or dist.get_rank() == 0 else shard[:0]


def held_bytes(parameters: Sequence[torch.nn.Parameter]) -> int:
    """Return the bytes of this process's shards."""
    return sum(share.numel() * share.element_size() for share in map(local_shard, parameters))
