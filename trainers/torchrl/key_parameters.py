"""Contents of the algorithm trainers' stage keys: the composed configuration.

References are resolved, so that a value counts wherever it is used and however it was written;
options that only affect logging, storage or the end of training are excluded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ratchet.errors import UnknownNameError, nearest
from ratchet.parameters.key_inputs import section_read
from ratchet.parameters.purposes import Purpose
from ratchet.plugins import class_name
from trainers.torchrl.configuration import trainer_parameters
from trainers.torchrl.offline_data import BUFFER, data_key

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

_NOT_RESULTS = (
    "checkpoint",
    "checkpoint_metadata",
    "checkpoint_rotation",
    "log_interval",
    "logger",
    "progress_bar",
    "save_trainer_file",
    "save_trainer_interval",
    "seed",
    "total_frames",
)
_DATA = "offline_dataset"
_STAGES = ("initial_state", "pretrain", "train", "test")


def algorithm_stage_parameters(
    hyper_params: HyperParameters, stage: str, batches_per_iteration: int
) -> dict[str, Any]:
    """Return the parameters that a stage reads.

    ``total_frames`` is excluded from the trainer and the collector, but included wherever else
    it is referenced, e.g. as the length of a schedule: raising it continues a run unless such a
    schedule reads it.
    """
    if stage not in _STAGES:
        raise UnknownNameError(f"stage: unknown {stage!r}.{nearest(stage, _STAGES)}")
    base = {
        "trainer": hyper_params.trainer_name,
        "scenario": hyper_params.scenario,
        "dataset": class_name(hyper_params.dataset),
        "seed": hyper_params.seed,
    }
    config = _without_paths(_results_only(trainer_parameters(hyper_params)))
    if stage == "test":  # training is in the state's key
        options = section_read(hyper_params.torchrl, {Purpose.TESTS})
        environment = config["collector"]["create_env_fn"]
        return {**base, "torchrl": options, "environment": environment}
    options = section_read(hyper_params.torchrl, {Purpose.LEARNING})
    options["batches_per_iteration"] = batches_per_iteration
    return {**base, "torchrl": options, "config": config}


def _without_paths(tree: Any) -> Any:  # noqa: ANN401 -- plain data
    """Remove paths of a user's classes and data.

    The code fingerprint contains the source of classes; data are represented by their content.
    """
    if isinstance(tree, Mapping):
        if tree.get("_target_") == BUFFER:
            tree = {**tree, _DATA: data_key(tree[_DATA])}
        return {name: _without_paths(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_without_paths(item) for item in tree]
    return class_name(tree) if isinstance(tree, str) else tree


def _results_only(parameters: Mapping[str, Any]) -> dict[str, Any]:
    config = {name: value for name, value in parameters.items() if name not in _NOT_RESULTS}
    if "anneal_frames" in config and config["anneal_frames"] is None:  # all frames by default
        config["anneal_frames"] = parameters["total_frames"]
    collector = dict(config["collector"])
    collector.pop("total_frames", None)
    return {**config, "collector": collector}
