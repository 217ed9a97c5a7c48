"""Play whole rollouts with agents that take their time: each round's agents act concurrently.

``sample_rollout`` plays one from beginning to end; ``play_step`` is one step of it, with which
trees of rollouts are grown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.scenarios.pure_text.environment import PureTextEnvironment
from ratchet.scenarios.pure_text.episode import AgentAction, Episode
from ratchet.scenarios.pure_text.layout import episode_to_rollout
from ratchet.scenarios.pure_text.playing import advance_episode, begin_episode, whose_turn
from ratchet.scenarios.pure_text.views import AgentView, view_of

if TYPE_CHECKING:
    from ratchet.scenarios.pure_text.agents.whole_agent import CallContext


class TextActor(Protocol):
    """An agent that acts on what it sees."""

    async def act(self, view: AgentView, context: CallContext) -> AgentAction:
        """Return what the agent does; ``context.call_prefix`` names the rollout and its node."""


async def sample_rollout(
    environment: PureTextEnvironment,
    agents: Mapping[str, TextActor],
    datapoint_id: int,
    seed: int,
    rollout_id: int,
    call_context: CallContext,
) -> NestedArrayDict:
    """Play one rollout from beginning to end.

    Parameters
    ----------
    datapoint_id
        A place in the dataset.
    rollout_id
        Its place in the plan.
    call_context
        What calls are made with; ``r<rollout_id>`` is added to its ``call_prefix``.

    Returns
    -------
    NestedArrayDict
        Batch [1], as :func:`ratchet.rollouts.specs.rollout_spec` says.
    """
    episode = begin_episode(environment, datapoint_id, seed, rollout_id)
    prefix = "/".join(filter(None, (call_context.call_prefix, f"r{rollout_id}")))
    context = replace(call_context, call_prefix=prefix)
    while not episode.done:
        episode = await play_step(environment, agents, episode, context)
    return episode_to_rollout(environment, episode)


async def play_step(
    environment: PureTextEnvironment,
    agents: Mapping[str, TextActor],
    episode: Episode,
    call_context: CallContext,
    *,
    node_id: int = -1,
) -> Episode:
    """Play one step, in which all whose turn it is act at once; return the episode after it.

    Parameters
    ----------
    episode
        One that goes on; left as it is, so that several steps can be played from it.
    call_context
        What calls are made with; the ids of calls are its ``call_prefix``, round and agent, so
        siblings need prefixes of their own.
    node_id
        The node of a tree that the step leads to.

    Raises
    ------
    RatchetError
        What an agent raised, when all others of this step have ended.
    """
    actions = await ask_agents(environment, agents, episode, call_context)
    return advance_episode(environment, episode, actions, node_id=node_id)


async def ask_agents(
    environment: PureTextEnvironment,
    agents: Mapping[str, TextActor],
    episode: Episode,
    call_context: CallContext,
) -> dict[str, AgentAction]:
    """Let all agents act whose turn it is, concurrently; by name. See :func:`play_step`."""
    rules, position = environment.rules, episode.position
    turns = zip(rules.agent_names, whose_turn(rules, episode), strict=True)
    names = [name for name, turn in turns if turn.channels]
    calls = [agents[name].act(view_of(rules, position, name), call_context) for name in names]
    if len(calls) == 1:
        return {names[0]: await calls[0]}
    # What the others were answered is paid for, so it is waited for even if one fails.
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    actions = {}
    for name, outcome in zip(names, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            raise outcome
        actions[name] = outcome
    return actions
