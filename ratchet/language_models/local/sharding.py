"""A network whose weights lie in several processes: each keeps a share, and gathers what it reads.

By torch's ``fully_shard`` (FSDP2). Gradients of all processes are summed, not averaged: what they
learn from adds up to one loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def shard_network(
    network: nn.Module,
    mesh: DeviceMesh,
    *,
    layers: Sequence[nn.Module] = (),
    methods: Sequence[str] = (),
) -> None:
    """Keep this process's share of a network's weights, on the mesh's device.

    Parameters
    ----------
    layers
        Parts that are gathered one at a time; what is in none of them is gathered together.
    methods
        What reads the network beside ``forward``.
    """
    if isinstance(network, FSDPModule):
        return  # of two models, one with and one without its adapter
    for part in (*layers, network):
        # let go of after reading, the outermost too: weights that are put in place are read next
        fully_shard(part, mesh=mesh, reshard_after_forward=True)
        assert isinstance(part, FSDPModule)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
        # an expert that only some processes have asked
        part.set_reduce_scatter_unused_params(True, recurse=False)
    for name in methods:
        register_fsdp_forward_method(network, name)


def own_share(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, in the same memory; all of one that has none."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather(share: Tensor, like: Tensor) -> Tensor:
    """Put a tensor together that is laid out like another; all processes take part."""
    if not isinstance(like, DTensor):
        return share
    laid_out = DTensor.from_local(
        share, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
    )
    return laid_out.full_tensor()


def cut(whole: Tensor, like: Tensor) -> Tensor:
    """Return this process's share of a tensor that all of them have, laid out like another."""
    if not isinstance(like, DTensor):
        return whole
    found = distribute_tensor(
        whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )
    return found.to_local()


def held_bytes(parameters: Sequence[torch.nn.Parameter]) -> int:
    """Return how much memory this process's shares take."""
    return sum(share.numel() * share.element_size() for share in map(own_share, parameters))
