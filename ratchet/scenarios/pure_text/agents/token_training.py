"""Training of a group's model on tokens, in a session at its service, exactly once.

A session is named by its initial state and all its requests. The same work, after an interruption,
is therefore the same session, which returns completed steps and executes the remaining ones;
different work from the same state, as in a fork, is a separate session.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from ratchet.language_models.training_service import connect
from ratchet.language_models.training_service.steps import mean_figures
from ratchet.scenarios.pure_text.agents.group_state import TokenTraining

if TYPE_CHECKING:
    from ratchet.language_models.training_service.steps import TrainingSteps
    from ratchet.scenarios.pure_text.agents.shared_model_group import PureTextSharedModelGroup

_METHOD = "tokens"
_NAME_LETTERS = 64


def train_on_tokens(
    group: PureTextSharedModelGroup,
    steps: TrainingSteps | None,
    *,
    name: str,
    reward_averages: Mapping[str, float],
) -> dict[str, float]:
    """Take training steps from the group's model, and store the next model in its state.

    If the model was trained in this way before, with an adapter of the same rank or without one,
    training continues with the optimizer's moments.

    Parameters
    ----------
    steps
        None without data: the model does not change.
    name
        A part of the model's id.
    reward_averages
        The agents' averages after these rollouts, stored in the state.

    Returns
    -------
    dict
        The metrics of the steps; empty without any.
    """
    state = group.state
    before = state.token_training or TokenTraining()
    learned = replace(before, reward_averages=dict(reward_averages))
    if steps is None:
        group.state = replace(state, token_training=learned, no_job_reason="insufficient_data")
        return {}
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        session, model, metrics = _train(group, steps, name)
    else:  # as in a notebook: the client has a separate loop
        with ThreadPoolExecutor(1) as pool:
            session, model, metrics = pool.submit(_train, group, steps, name).result()
    group.state = replace(
        state,
        fine_tune_job_id=session,
        no_job_reason=None,
        token_training=replace(learned, session=session, model=model, lora_rank=_rank(group)),
    )
    return metrics


def _train(
    group: PureTextSharedModelGroup, steps: TrainingSteps, name: str
) -> tuple[str, str, dict[str, float]]:
    """Return the session, its saved model, and the metrics of the steps."""
    model, seed, rank = group.current_model_name, group.training_seed(_METHOD), _rank(group)
    known = group.state.token_training
    goes_on = known is not None and (known.model, known.lora_rank) == (model, rank)
    content = f"{model}:{goes_on}:{seed}:{rank}:{name}:{steps.digest}"
    intent = hashlib.sha256(content.encode()).hexdigest()
    if group.parameters.use_dummy_api:
        return f"dummy-{intent[:12]}", f"train:{group.base_model_name}:{name}:{intent[:12]}", {}
    with connect(
        group.endpoint.base_url or "",
        model=model,
        lora_rank=rank,
        seed=seed,
        intent=intent,
        resume=goes_on,
        api_key_name=group.endpoint.api_key_name,
        timeout_seconds=group.endpoint.timeout_seconds,
    ) as session:
        saved, completed_steps = steps.take(session, name[:_NAME_LETTERS])
        return session.session_id, saved, mean_figures(completed_steps)


def _rank(group: PureTextSharedModelGroup) -> int:
    return group.parameters.fine_tuning.lora_rank or 0
