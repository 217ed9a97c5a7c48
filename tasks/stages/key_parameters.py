"""Which parameters belong to the keys of stages that no trainer speaks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ratchet.parameters.base import SECTIONS
from ratchet.parameters.discovery import load_plugins

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

_NOT_DATA = (
    "base_run",
    "message_regression",
    "protocol_common",
    "rl",
    "solo_agent",
    "zk_protocol",
)
_BUILT_IN = "ratchet.scenarios."


def data_parameters(hyper_params: HyperParameters) -> dict[str, Any]:
    """Return the parameters that decide the datasets, as plain data.

    Sections of the scenario, and those of plug-ins that say nothing about who reads them. Of
    Ratchet's own scenarios it is known that they draw from ``dataset_seed`` where it is given, so
    that repetitions with other seeds share their data.
    """
    load_plugins()
    everything = hyper_params.to_dict()
    names = ["scenario", "dataset", "seed", "test_size"]
    for name, section in SECTIONS.items():
        readers = section.trainers or section.protocols or section.scenarios
        if hyper_params.scenario in section.scenarios or not (readers or name in _NOT_DATA):
            names.append(name)
    if _has_own_seed(hyper_params):
        names.remove("seed")
    return {name: everything[name] for name in names}


def _has_own_seed(hyper_params: HyperParameters) -> bool:
    """Say whether the data of a built-in scenario have a seed other than the experiment's."""
    return any(
        section.model.__module__.startswith(_BUILT_IN)
        and hyper_params.scenario in section.scenarios
        and getattr(getattr(hyper_params, name), "dataset_seed", None) is not None
        for name, section in SECTIONS.items()
    )


def without_path(value: object) -> object:
    """Leave out where a plug-in lies: its source is in the fingerprint, its path is no matter."""
    if isinstance(value, str) and ".py:" in value:
        return value.rpartition(":")[2]
    if isinstance(value, Mapping) and {"module_path", "class_name"} == value.keys():
        return value["class_name"]
    return value
