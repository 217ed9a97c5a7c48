"""Which hyper-parameters the stages of tensor trainers read: what belongs to their keys.

When in doubt a value is left in: a stage run again costs time, a stale one the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ratchet.errors import UnknownNameError, nearest
from ratchet.parameters.agents import DEFAULT_AGENT, LEARNING_FIELDS, ORIGIN_FIELDS
from trainers.relevant_parameters import is_built_in, relevant_parameters, without_fields

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from trainers.base import Trainer

_ROLLOUT = ("frames_per_batch", "rollouts_per_iteration", "steps_per_env_per_iteration")
_INITIAL_RL = ("normalize_observations", "num_normalization_steps", "use_shared_body", *_ROLLOUT)
_TEST_RL = ("num_test_iterations", "use_shared_body", *_ROLLOUT)
_LEARNING = ("ppo", "reinforce", "spg", "solo_agent")
"""Sections that say how trainers learn."""
_PRETRAIN_RL = ("body_lr_factor", "max_grad_norm", "use_shared_body")

PRETRAINED_MODEL_CACHE_PARAM_KEYS = ("seed", "rl", "solo_agent")
"""What pretraining reads beside the data, the initial weights and the agent's own parameters.

Data and initial weights are inputs of its stage, so that all that decides them counts too. Of
``rl`` only body factors and the bound on gradients are read.
"""


def _keep(data: dict[str, Any], section: str, names: tuple[str, ...]) -> None:
    data[section] = {name: data[section][name] for name in names}


def initial_state_parameters(
    hyper_params: HyperParameters, trainer: type[Trainer]
) -> dict[str, Any]:
    """Return what fresh weights and the fit of the normalisation depend on."""
    data = relevant_parameters(hyper_params, trainer)
    if is_built_in(trainer):
        _keep(data, "rl", _INITIAL_RL)
        for name in _LEARNING:
            data.pop(name, None)
        data["agents"] = without_fields(data["agents"], LEARNING_FIELDS)
    return data


def pretrain_parameters(
    hyper_params: HyperParameters, trainer: type[Trainer], agent_name: str
) -> dict[str, Any]:
    """Return what pretraining one agent depends on beside the initial state and the data.

    For built-in trainers that is :data:`PRETRAINED_MODEL_CACHE_PARAM_KEYS` and the agent's own.
    """
    data = relevant_parameters(hyper_params, trainer)
    if is_built_in(trainer):
        _keep(data, "rl", _PRETRAIN_RL)
        data = {name: data[name] for name in PRETRAINED_MODEL_CACHE_PARAM_KEYS if name in data}
    left_out = (*ORIGIN_FIELDS, "update_schedule")
    own = {agent_name: hyper_params.agents[agent_name].to_dict()}
    return {**data, "agents": without_fields(own, left_out)}


def train_parameters(
    hyper_params: HyperParameters, trainer: type[Trainer], *, reads_num_iterations: bool
) -> dict[str, Any]:
    """Return what a training iteration depends on beside the state before and the data."""
    data = relevant_parameters(hyper_params, trainer)
    left_out = {"num_test_iterations"}
    if is_built_in(trainer):  # what the initial state has read already
        left_out |= {"normalize_observations", "num_normalization_steps"}
    if not reads_num_iterations:
        left_out.add("num_iterations")
    data["rl"] = {name: value for name, value in data["rl"].items() if name not in left_out}
    if trainer.trainer_type != "solo_agent" and is_built_in(trainer):
        data.pop("solo_agent", None)
    data.pop("test_size", None)
    return data


def check_parameters(hyper_params: HyperParameters, trainer: type[Trainer]) -> dict[str, Any]:
    """Return what a test depends on beside the state and the data: no learning rates, no epochs."""
    data = relevant_parameters(hyper_params, trainer)
    if is_built_in(trainer):
        _keep(data, "rl", _TEST_RL)
        for name in _LEARNING:
            data.pop(name, None)
    data.pop("test_size", None)
    data["agents"] = without_fields(data["agents"], LEARNING_FIELDS)
    return data


def stage_parameters(
    hyper_params: HyperParameters,
    trainer: type[Trainer],
    stage: str,
    agent_name: str | None,
    *,
    reads_num_iterations: bool,
) -> dict[str, Any]:
    """Return what a stage reads.

    Raises
    ------
    UnknownNameError
        If there is no such stage.
    """
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "initial_state": lambda: initial_state_parameters(hyper_params, trainer),
        "pretrain": lambda: pretrain_parameters(
            hyper_params, trainer, agent_name if agent_name is not None else DEFAULT_AGENT
        ),
        "train": lambda: train_parameters(
            hyper_params, trainer, reads_num_iterations=reads_num_iterations
        ),
        "test": lambda: check_parameters(hyper_params, trainer),
    }
    if stage not in makers:
        raise UnknownNameError(f"stage: unknown {stage!r}.{nearest(stage, makers)}")
    return makers[stage]()
