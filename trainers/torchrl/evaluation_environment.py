"""Environment of evaluations and tests: one episode at a time, observed as in training.

Running means of the training environment are copied and frozen.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.nn.parameter import is_lazy
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.batched_envs import BatchedEnvBase

if TYPE_CHECKING:
    from torchrl.collectors import BaseCollector

logger = logging.getLogger(__name__)

_BATCHED = "make_batched_env"
_VECTORISED = "VmasEnv"  # always has a batch


def single_environment(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of one of the environments used for collection.

    Batches of environments at any depth of ``create_env_fn`` are replaced by their elements.
    """
    if isinstance(config, list):
        return single_environment(config[0])
    if is_batched(config):
        return single_environment(config["create_env_fn"])
    single = {**config, "_partial_": False}
    if isinstance(single.get("base_env"), Mapping):
        single["base_env"] = single_environment(single["base_env"])
    if single.get("num_envs"):
        vectorised = str(single.get("_target_", "")).endswith(_VECTORISED)
        single["num_envs"] = 1 if vectorised else 0
    return single


def is_batched(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration creates a batch of environments, perhaps in workers."""
    return str(config.get("_target_", "")).endswith(_BATCHED)


def copy_normalization(collector: BaseCollector, environment: EnvBase) -> None:
    """Copy the learned state of the training environment's transforms, e.g. running means."""
    source = getattr(collector, "env", None)
    if not isinstance(environment, TransformedEnv) or source is None:
        return
    learned = _transform_state(source)
    if not learned:
        return
    if any(is_lazy(value) for value in environment.transform.buffers()):
        environment.reset()  # for transforms that create their buffers on first use
    state = environment.transform.state_dict()
    if learned.keys() != state.keys():
        logger.warning(
            "the environments of evaluation and training have different transforms: the state"
            " learned by the latter (%s) is not used",
            ", ".join(sorted(learned)),
        )
        return
    # Buffers of a batch's shape, e.g. the last frames, are specific to each environment.
    state |= {n: value for n, value in learned.items() if _shape(value) == _shape(state[n])}
    environment.transform.load_state_dict(state)
    for transform in environment.transform:
        if hasattr(transform, "freeze"):
            transform.freeze()


def _shape(value: object) -> object:
    """Return a tensor's shape; None for other values."""
    return getattr(value, "shape", None)


def _transform_state(environment: EnvBase) -> dict[str, Any]:
    if isinstance(environment, TransformedEnv):
        state: dict[str, Any] = environment.transform.state_dict()
        return state or _transform_state(environment.base_env)
    if isinstance(environment, BatchedEnvBase):
        workers = environment.state_dict()
        return dict(workers.get("worker0", {}))
    return {}
