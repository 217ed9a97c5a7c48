"""Turns of rollouts that are sampled again, and the replies that are used for training.

For replayed credit (:mod:`ratchet.algorithms.replayed_credit`). A redrawn rollout repeats its
original: equal requests have equal seeds and completions, except for the redrawn turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ratchet.algorithms.replayed_credit import NOT_REDRAWN, REDRAWN, credited_replies
from ratchet.errors import DataError
from ratchet.rollouts.trajectory import Trajectory
from ratchet.scenarios.language_task.rollout import RETURN, Redraw, Rollout
from ratchet.scenarios.language_task.task import NUM_TURNS

if TYPE_CHECKING:
    from ratchet.algorithms.replayed_credit import Flags, Indices


def redraw_rollouts(originals: Sequence[Rollout], redraws: Mapping[str, int]) -> list[Rollout]:
    """Return the rollouts in which one turn of an agent in ``redraws`` is sampled again."""
    return [
        Rollout(
            original.task,
            original.group_id,
            f"{original.attempt_id}/{agent}.{turn}.{number}",
            Redraw(original, agent, turn, number),
            original.completions,
        )
        for original in originals
        if not original.is_dropped
        for agent, seat in original.played.seats.items()
        for turn in range(seat.num_turns)
        for number in range(1, redraws.get(agent, 0) + 1)
    ]


def credited_trajectories(
    rollouts: Sequence[Rollout],
    redraws: Mapping[str, int],
    group_id: Callable[[Rollout, str], str],
    *,
    model_version: int,
) -> list[Trajectory]:
    """Return a trajectory for each reply used for training: its conversation, which ends with it.

    Draws of one turn are a group, with the rewards of their rollouts. The replies of other agents
    are in the group that ``group_id`` names, as without redraws. Raises DataError if a rollout did
    not repeat its original.
    """
    families: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        original = rollout if rollout.redraw is None else rollout.redraw.original
        if not rollout.is_dropped:
            families.setdefault(original.attempt_id, []).append(rollout)
    return [
        trajectory
        for family in families.values()
        for trajectory in _of_family(family, redraws, group_id, model_version)
    ]


def _of_family(
    family: Sequence[Rollout],
    redraws: Mapping[str, int],
    group_id: Callable[[Rollout, str], str],
    model_version: int,
) -> Iterator[Trajectory]:
    """Iterate over the credited replies of a rollout and of those redrawn from it."""
    original, agents = family[0], list(family[0].played.seats)
    turns = _redrawn_turns(family, agents)
    for index, agent in enumerate(agents):
        is_redrawn = agent in redraws
        rewards = np.array([rollout.played.seats[agent].score.reward for rollout in family])
        acted = _acted(family, agent, turns.shape[1])
        credited = credited_replies(turns, acted, rewards, index, compares_draws=is_redrawn)
        for row, step, reward in zip(
            credited.row.tolist(), credited.step.tolist(), credited.reward.tolist(), strict=True
        ):
            group = f"{original.attempt_id}/{agent}.{step}"
            yield _trajectory(
                family[row],
                agent,
                step,
                reward,
                group if is_redrawn else group_id(original, agent),
                model_version,
            )


def _redrawn_turns(family: Sequence[Rollout], agents: Sequence[str]) -> Indices:
    """Return the index of the agent whose turn was redrawn at each step, else −1: int64 [N, T]."""
    shape = len(family), max(rollout.played.num_steps for rollout in family)
    turns = np.full(shape, NOT_REDRAWN)
    for row, rollout in enumerate(family):
        if (redraw := rollout.redraw) is not None:
            _check_prefix(rollout, redraw)
            reply = redraw.original.played.seats[redraw.agent].replies[redraw.turn]
            turns[row, reply.step] = agents.index(redraw.agent)
    return turns


def _check_prefix(rollout: Rollout, redraw: Redraw) -> None:
    """Check that the redrawn turn has the prefix of the original."""
    before = _before_turn(redraw.original, redraw.agent, redraw.turn)
    if _before_turn(rollout, redraw.agent, redraw.turn) != before:
        raise DataError(
            f"rollout {rollout.attempt_id}: the conversation of {redraw.agent!r} before its turn"
            f" {redraw.turn} differs from that of {redraw.original.attempt_id}, expected the same."
            " grpo.redraws needs a game or environment that is a function of its seed and the"
            " replies."
        )


def _before_turn(rollout: Rollout, agent: str, turn: int) -> tuple[int, list[int]] | None:
    """Return the step of an agent's turn and the tokens before it; None if it had no such turn."""
    replies = rollout.played.seats[agent].replies
    if turn >= len(replies):
        return None
    return replies[turn].step, replies[turn].segment.tokens[: replies[turn].start]


def _acted(family: Sequence[Rollout], agent: str, num_steps: int) -> Flags:
    """Return the steps at which an agent's model replied: bool [N, T]."""
    acted = np.zeros((len(family), num_steps), dtype=np.bool_)
    for row, rollout in enumerate(family):
        acted[row, [reply.step for reply in rollout.played.seats[agent].replies]] = True
    return acted


def _trajectory(
    rollout: Rollout, agent: str, step: int, reward: float, group: str, model_version: int
) -> Trajectory:
    """Return the conversation up to a reply, whose tokens are the only ones with a loss."""
    seat = rollout.played.seats[agent]
    (reply,) = [reply for reply in seat.replies if reply.step == step]
    segment, start, stop = reply.segment, reply.start, reply.stop
    is_last = reply is seat.replies[-1]
    return Trajectory(
        tokens=segment.tokens[:stop],
        loss_mask=[0] * start + [1] * (stop - start),
        logprobs=[0.0] * start + segment.logprobs[start:stop],
        reward=reward,
        scores=dict(seat.score.parts),
        group_id=group,
        run_id=rollout.group_id,
        attempt_id=rollout.attempt_id,
        task_id=rollout.task.task_id,
        agent=agent,
        role=seat.role,
        finish_reason=seat.finish_reason if is_last else "stop",
        is_truncated=is_last and seat.finish_reason == "length",
        model_version=model_version,
        metrics={
            **rollout.played.metrics(),
            **seat.score.metrics,
            f"{RETURN}{agent}": seat.score.reward,
            NUM_TURNS: float(seat.num_turns),
            REDRAWN: float(rollout.redraw is not None),
        },
    )
