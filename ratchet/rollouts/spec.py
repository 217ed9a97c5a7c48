"""The layout of rollouts: which arrays a batch of finished episodes has.

Written by those who play, read by statistics, transcripts, trainers and fine-tuning.
"""

from __future__ import annotations

import numpy as np

from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.specs import (
    BoolArraySpec,
    CompositeSpec,
    FloatArraySpec,
    IntArraySpec,
    StringArraySpec,
)

_ADDED_LATER = ("thinking", "invalid_reason")

NO_DECISION = 2
NOBODY = -1


def rollout_spec(
    num_rounds: int,
    num_agents: int,
    num_channels: int,
    *,
    has_degrees: bool = False,
    has_tokens: bool = False,
) -> CompositeSpec:
    """Return the spec of a batch of rollouts; the batch size is open.

    Parameters
    ----------
    num_rounds, num_agents, num_channels
        T, A and C below; the protocol's.
    has_degrees
        Whether decisions are more or less sure: then there is ``confidence`` under ``agents``.
    has_tokens
        Whether the tokens of replies were asked for: then there is ``tokens`` under ``agents``, see
        :mod:`ratchet.rollouts.tokens`.

    Returns
    -------
    CompositeSpec
        For each rollout: what was played (``rollout_id``, ``datapoint_id``, ``seed``, ``y``,
        ``prover_stance``, ``question``, ``solution``), the messages at its end
        (``message_history`` and ``message_agent_id`` [T, C], ``raw_message_history`` [T, A]),
        and for each of T steps what happened: ``round``, ``done`` and ``terminated`` after it,
        ``padding`` where it was not played, ``node_id`` in a tree, and under ``agents`` what
        each did.
    """
    history, steps = (num_rounds, num_channels), (num_rounds,)
    acts = (num_rounds, num_agents)
    degrees = {"confidence": FloatArraySpec(acts)} if has_degrees else {}
    tokens = {"tokens": StringArraySpec(acts)} if has_tokens else {}
    return CompositeSpec(
        {
            "rollout_id": IntArraySpec(nothing=-1),
            "datapoint_id": IntArraySpec(nothing=-1),
            "seed": IntArraySpec(),
            "y": IntArraySpec(low=0, high=1),
            "prover_stance": IntArraySpec(nothing=1, low=0, high=1),
            "question": StringArraySpec(),
            "solution": StringArraySpec(),
            "message_history": StringArraySpec(history),
            "message_agent_id": IntArraySpec(
                history, nothing=NOBODY, low=NOBODY, high=num_agents - 1
            ),
            "raw_message_history": StringArraySpec(acts),
            "round": IntArraySpec(steps, low=0),
            "padding": BoolArraySpec(steps, nothing=True),
            "done": BoolArraySpec(steps),
            "terminated": BoolArraySpec(steps),
            "node_id": IntArraySpec(steps, nothing=-1, low=-1),
            "agents": {
                "active": BoolArraySpec(acts),
                "message": StringArraySpec((*acts, num_channels)),
                "raw_message": StringArraySpec(acts),
                "prompt": StringArraySpec(acts),
                "decision": IntArraySpec(acts, nothing=NO_DECISION, low=0, high=NO_DECISION),
                **degrees,
                "reward": FloatArraySpec(acts),
                "retry_count": IntArraySpec(acts, low=0),
                "token_limit": BoolArraySpec(acts),
                "valid": BoolArraySpec(acts),
                "prompt_tokens": IntArraySpec(acts, low=0),
                "completion_tokens": IntArraySpec(acts, low=0),
                "thinking": StringArraySpec(acts),
                "invalid_reason": StringArraySpec(acts),
                **tokens,
            },
        }
    )


def add_later_arrays(rollouts: NestedArrayDict) -> None:
    """Add to rollouts of an earlier version, in place, what they lack: nothing is known of it."""
    if ("agents", "raw_message") not in rollouts:
        return
    for name in _ADDED_LATER:
        if ("agents", name) not in rollouts:
            rollouts["agents", name] = np.full_like(rollouts["agents", "raw_message"], None)
