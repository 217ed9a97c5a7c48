"""Devices of the library's networks and buffers: a setting, not a part of a key."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from trainers.torchrl.offline_data import BUFFER

_NETWORKS = ("torchrl.modules.", "torchrl.trainers.algorithms.configs.modules.")
_LIBRARY = ("torchrl.", "torch.optim.")
_TENSOR_STORAGES = ("LazyTensorStorage", "TensorStorage")
_SIMULATORS = "create_env_fn"
_PLACED = "trainers.torchrl.device_placement.placed"


def place_on(parameters: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Place networks, policy and sampled frames on a device; simulators stay on the CPU.

    For ``"cpu"`` a trainer's composed configuration is returned unchanged.
    """
    if device == "cpu":
        return dict(parameters)
    device = _with_index(device)
    placed: dict[str, Any] = _place(parameters, device)
    placed["collector"] |= {
        "policy_device": device,
        "storing_device": device,
        "env_device": "cpu",
        "device": None,
    }
    return placed


def _with_index(device: str) -> str:
    """Return the device's complete name, as tensors report it: collectors compare names.

    They would otherwise sample with a copy of the policy, which does not follow restored weights.
    """
    import torch

    if torch.device(device).index is not None:
        return device
    is_used = torch.accelerator.is_available()
    return f"{device}:{torch.accelerator.current_device_index() if is_used else 0}"


def placed(made: object, device: str) -> object:
    """Move a network, or the networks a function creates, to a device; return others unchanged."""
    import torch
    from torchrl.envs import EnvBase

    if isinstance(made, partial):
        return partial(_make_placed, made, device)
    if isinstance(made, torch.nn.Module) and not isinstance(made, EnvBase):
        return made.to(device)
    return made


def _make_placed(
    make: partial[Any],
    device: str,
    *args: Any,  # noqa: ANN401 -- the function's own
    **kwargs: Any,  # noqa: ANN401
) -> object:
    return placed(make(*args, **kwargs), device)


def _place(tree: Any, device: str) -> Any:  # noqa: ANN401 -- plain data
    if isinstance(tree, list):
        return [_place(item, device) for item in tree]
    if not isinstance(tree, Mapping):
        return tree
    target = str(tree.get("_target_", ""))
    if target.startswith(_NETWORKS) and "device" in tree:  # it creates its layers there
        return {**tree, "device": device}
    result = {
        name: value if name == _SIMULATORS else _place(value, device)
        for name, value in tree.items()
    }
    if target.endswith(_TENSOR_STORAGES) or target == BUFFER:
        result["device"] = device
    if target and (target.startswith(_NETWORKS) or not target.startswith(_LIBRARY)):
        return {"_target_": _PLACED, "made": result, "device": device}
    return result
