"""Configurations that build a trainer in seconds, to refuse in a plan what a run would refuse.

They have no worker processes and no library datasets; everything else is as in a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ratchet.errors import ParameterError
from trainers.torchrl.configuration import UNREAD
from trainers.torchrl.evaluation_environment import is_batched
from trainers.torchrl.offline_data import BUFFER, reads_library_data

_LIBRARY = "torchrl.collectors."
_LOCAL_OPTIONS = (
    *("_partial_", "exploration_type", "frames_per_batch", "init_random_frames", "policy"),
    *("max_frames_per_traj", "postproc", "reset_at_each_iter", "split_trajs", "total_frames"),
    "track_policy_version",
)
"""Options with the same meaning in all of the library's collectors."""
_DATASETS = "torchrl.data.datasets."
_WITH_WORKERS = ("MultiSyncCollector", "MultiAsyncCollector")
_MAP = "weight_update_map"
_WITH_MAP = ("_make_ppo_trainer", "_make_a2c_trainer", "_make_reinforce_trainer")
_MOST_ENVIRONMENTS = 2


def trial_parameters(parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a trainer's configuration for a trial; None if it has parts that may be slow."""
    collector = parameters["collector"]
    targets = list(_targets(parameters))
    if not str(collector.get("_target_")).startswith(_LIBRARY) or any(
        target.startswith(_DATASETS) for target in targets
    ):
        return None
    if BUFFER in targets and reads_library_data(parameters["replay_buffer"].get("offline_dataset")):
        return None
    local = {name: collector[name] for name in _LOCAL_OPTIONS if name in collector}
    local |= {
        "_target_": f"{_LIBRARY}Collector",
        "create_env_fn": _without_processes(collector["create_env_fn"]),
    }
    unread = {name: None for name in UNREAD if name in parameters}
    return {**parameters, **unread, "collector": local, _MAP: None}


def check_weight_updates(parameters: Mapping[str, Any]) -> None:
    """Refuse collectors with workers whose policy the library would not update."""
    kind = str(parameters["collector"].get("_target_")).rpartition(".")[2]
    if kind not in _WITH_WORKERS or parameters.get(_MAP) is not None:
        return
    if str(parameters.get("_target_")).endswith(_WITH_MAP):
        raise ParameterError(
            f"torchrl.config.trainer.{_MAP}: got None with the collector {kind}, whose workers"
            f" need the learned weights. Set `trainer.{_MAP}={{policy:"
            " loss_module.actor_network}`."
        )


def _targets(tree: Any) -> Iterator[str]:  # noqa: ANN401 -- plain data
    if isinstance(tree, Mapping):
        yield str(tree.get("_target_", ""))
    for part in tree.values() if isinstance(tree, Mapping) else tree:
        if isinstance(part, Mapping | list):
            yield from _targets(part)


def _without_processes(config: Any) -> Any:  # noqa: ANN401 -- plain data
    """Replace environments in workers by a few in this process, with the same dimensions."""
    if isinstance(config, list):
        return _without_processes(config[0])
    if not isinstance(config, Mapping):
        return config
    inner = {n: _without_processes(config[n]) for n in ("base_env", "create_env_fn") if n in config}
    if is_batched(config):
        inner["batched_env_type"] = "serial"
        inner["num_workers"] = min(config.get("num_workers") or 1, _MOST_ENVIRONMENTS)
    return {**config, **inner}
