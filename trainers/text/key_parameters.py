"""Which hyper-parameters the stages of text trainers read: what belongs to their keys.

When in doubt a value is left in: a stage run again costs money, a stale one the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ratchet.errors import UnknownNameError, nearest
from trainers.relevant_parameters import is_built_in, relevant_parameters

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from trainers.base import Trainer

_OF_TENSORS = (
    "d_linear_message_space",
    "d_representation",
    "include_linear_message_space",
    "message_size",
    "pretrain_agents",
    "solo_agent",
    "test_size",
    "zk_protocol",
)
_AGENT_OF_TENSORS = (
    "agent_lr_factor",
    "body_lr_factor",
    "checkpoint_run_id",
    "checkpoint_version",
    "is_random",
    "load_checkpoint_and_parameters",
    "orthogonal_initialisation_gain",
    "use_manual_architecture",
    "use_orthogonal_initialisation",
)
_AGENT_LEARNING = ("fine_tune_from_scratch", "fine_tuning", "freeze_agent", "update_schedule")
_AGENT_PLAYING = (
    "max_response_words",
    "max_tokens_per_message",
    "num_invalid_generation_retries",
    "temperature",
    "top_p",
)
_LEARNING_SECTIONS = ("pure_text_ei", "pure_text_malt", "text_rl")
_REPORTED = ("save_transcripts", "transcript_format")
_TESTED = ("test_on_whole_dataset", "test_scheme")


def stage_parameters(
    hyper_params: HyperParameters, trainer: type[Trainer], stage: str
) -> dict[str, Any]:
    """Return what a stage reads.

    Raises
    ------
    UnknownNameError
        If there is no such stage.
    """
    makers: dict[str, Callable[[HyperParameters, type[Trainer]], dict[str, Any]]] = {
        "initial_state": _initial_state,
        "sample_rollouts": _sample_rollouts,
        "log_stats": _log_stats,
        "test_during_training": _test,
        "create_fine_tune_jobs": _create_fine_tune_jobs,
        "await_fine_tune_jobs": _await_fine_tune_jobs,
        "test": _test,
    }
    if stage not in makers:
        raise UnknownNameError(f"stage: unknown {stage!r}.{nearest(stage, makers)}")
    if is_built_in(trainer):
        return makers[stage](hyper_params, trainer)
    return _everything(hyper_params, trainer)


def _everything(hyper_params: HyperParameters, trainer: type[Trainer]) -> dict[str, Any]:
    """Return all that a trainer may read; the number of iterations it meets nowhere."""
    data = relevant_parameters(hyper_params, trainer)
    data["rl"].pop("num_iterations")
    return data


def _common(
    hyper_params: HyperParameters, trainer: type[Trainer], agent_leaves_out: tuple[str, ...]
) -> dict[str, Any]:
    """Return protocol, scenario and agents, without what only trainers of tensors read."""
    data = relevant_parameters(hyper_params, trainer)
    for name in _OF_TENSORS:
        data.pop(name, None)
    data["rl"] = {"rollouts_per_iteration": data["rl"]["rollouts_per_iteration"]}
    for agent in data["agents"].values():
        for name in (*_AGENT_OF_TENSORS, *agent_leaves_out):
            agent.pop(name, None)
    return data


def _without(data: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in names}


def _initial_state(hyper_params: HyperParameters, trainer: type[Trainer]) -> dict[str, Any]:
    """Which models there are, and who shares them."""
    left_out = (*_AGENT_LEARNING, *_AGENT_PLAYING)
    return _without(_common(hyper_params, trainer, left_out), "rl", *_LEARNING_SECTIONS)


def _sample_rollouts(hyper_params: HyperParameters, trainer: type[Trainer]) -> dict[str, Any]:
    return _without(_common(hyper_params, trainer, _AGENT_LEARNING), "pure_text_ei", "text_rl")


def _log_stats(hyper_params: HyperParameters, trainer: type[Trainer]) -> dict[str, Any]:
    data = _common(hyper_params, trainer, (*_AGENT_LEARNING, *_AGENT_PLAYING))
    text_rl = {name: data["text_rl"][name] for name in _REPORTED}
    return {**_without(data, "rl", *_LEARNING_SECTIONS), "text_rl": text_rl}


def _test(hyper_params: HyperParameters, trainer: type[Trainer]) -> dict[str, Any]:
    """The scheme says when, not what; how many rollouts only where not all data are played."""
    data = _common(hyper_params, trainer, _AGENT_LEARNING)
    kept = ("test_on_whole_dataset", *_REPORTED)
    text_rl = {name: data["text_rl"][name] for name in kept}
    left_out = ("rl",) if text_rl["test_on_whole_dataset"] else ()
    return {**_without(data, *left_out, *_LEARNING_SECTIONS), "text_rl": text_rl}


def _create_fine_tune_jobs(hyper_params: HyperParameters, trainer: type[Trainer]) -> dict[str, Any]:
    data = _common(hyper_params, trainer, ())
    data["text_rl"] = _without(data["text_rl"], *_REPORTED, *_TESTED)
    return _without(data, "rl")


def _await_fine_tune_jobs(hyper_params: HyperParameters, trainer: type[Trainer]) -> dict[str, Any]:
    """Nothing: what is waited for is in the state."""
    return {"trainer": hyper_params.trainer_name}
