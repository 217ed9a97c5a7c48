"""Trajectories of rollouts: the tokens of agents' prompts and replies, and their rewards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ratchet.errors import DataError
from ratchet.rollouts.outcomes import episode_rewards
from ratchet.rollouts.tokens import tokens_of
from ratchet.rollouts.trajectory import Trajectory

if TYPE_CHECKING:
    from ratchet.rollouts.nested_array_dict import NestedArrayDict
    from ratchet.rollouts.tokens import ReplyTokens


def reply_trajectories(
    rollouts: NestedArrayDict, agent: str, agent_index: int, *, model_version: int = 0
) -> list[Trajectory]:
    """Return a trajectory for each reply of an agent in rollouts [N], grouped by rollout.

    The replies of a rollout are segments of one run, each with the sum of the agent's rewards. A
    group consists of the agent's runs on one datapoint. If invalid replies were retried, the last
    one is used.

    Raises
    ------
    DataError
        If a reply's tokens are missing or incomplete.
    """
    rewards = episode_rewards(rollouts)[:, agent_index]
    acted = rollouts.array(("agents", "active"))[:, :, agent_index] & ~rollouts.array("padding")
    cut = rollouts.array(("agents", "token_limit"))[:, :, agent_index]
    made = []
    for row, step in np.argwhere(acted).tolist():
        where = f"rollout {row}, step {step}, agent {agent!r}"
        prompt, written, log_probs = _complete(tokens_of(rollouts, row, step, agent_index), where)
        datapoint = int(rollouts["datapoint_id"][row])
        made.append(
            Trajectory(
                tokens=[*prompt, *written],
                loss_mask=[0] * len(prompt) + [1] * len(written),
                logprobs=[0.0] * len(prompt) + [*log_probs],
                reward=float(rewards[row]),
                group_id=f"{datapoint}/{agent}",
                run_id=f"{datapoint}/{agent}",
                attempt_id=f"{row}",
                task_id=f"{datapoint}",
                agent=agent,
                finish_reason="length" if cut[row, step] else "stop",
                is_truncated=bool(cut[row, step]),
                model_version=model_version,
            )
        )
    return made


def _complete(
    tokens: ReplyTokens | None, where: str
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
    """Return prompt tokens, reply tokens, and the latter's log-probabilities."""
    if tokens is not None and tokens.prompt_token_ids and tokens.token_ids is not None:
        written, log_probs = tokens.token_ids, tokens.log_probs
        if log_probs is not None and len(written) == len(log_probs):
            return tokens.prompt_token_ids, written, log_probs
    found = "nothing" if tokens is None else sorted(tokens.to_dict())
    raise DataError(
        f"{where}: the service returned {found} of the reply's tokens, expected token ids of"
        " prompt and reply, and a log-probability for each token of the reply. Run the agent on"
        " the embedded service or `ratchet llm serve`, or freeze it."
    )
