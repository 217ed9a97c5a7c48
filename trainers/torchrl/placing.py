"""Where the library's networks and buffers lie: the device is a setting, no part of a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NETWORKS = "torchrl.modules."
_TENSOR_STORAGES = ("LazyTensorStorage", "TensorStorage")


def place_on(parameters: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Put networks, policy and sampled frames on a device; simulators stay on the CPU.

    A trainer's composed configuration is left as it is for ``"cpu"``.
    """
    if device == "cpu":
        return dict(parameters)
    placed: dict[str, Any] = _place(parameters, device)
    placed["collector"] |= {
        "policy_device": device,
        "storing_device": device,
        "env_device": "cpu",
        "device": None,
    }
    return placed


def _place(tree: Any, device: str) -> Any:  # noqa: ANN401 -- plain data
    if isinstance(tree, list):
        return [_place(item, device) for item in tree]
    if not isinstance(tree, Mapping):
        return tree
    result = {name: _place(value, device) for name, value in tree.items()}
    target = str(tree.get("_target_", ""))
    is_network = target.startswith(_NETWORKS) and "device" in tree
    if is_network or target.endswith(_TENSOR_STORAGES):
        result["device"] = device
    return result
