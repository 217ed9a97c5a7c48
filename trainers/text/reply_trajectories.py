"""Trajectories of rollouts: what agents read and wrote, token by token, and what it paid them."""

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
    """Make a trajectory of each reply of an agent's in rollouts [N], those of a rollout together.

    The replies of a rollout are segments of one run, and each has its whole reward, the sum of the
    agent's. A group are the agent's runs on one datapoint. Of replies that couldn't be read and
    were asked for again it is the last.

    Raises
    ------
    DataError
        If a reply has no tokens, or not all of what is known of them.
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
    """Return what was read and written, and its log-probabilities."""
    if tokens is not None and tokens.prompt_token_ids and tokens.token_ids is not None:
        written, log_probs = tokens.token_ids, tokens.log_probs
        if log_probs is not None and len(written) == len(log_probs):
            return tokens.prompt_token_ids, written, log_probs
    found = "nothing" if tokens is None else sorted(tokens.to_dict())
    raise DataError(
        f"{where}: the service said {found} of the reply's tokens, expected the ids of what was"
        " read and written, and a log-probability for each that was written. Let the agent play at"
        " the embedded service or `ratchet llm serve`, or freeze it."
    )
