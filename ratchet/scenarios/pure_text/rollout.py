"""Rollouts of text games: layout of the arrays, and episodes in which agents act concurrently.

``sample_rollout`` runs a complete episode; ``play_step`` runs one step, for trees of rollouts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.specs import rollout_spec
from ratchet.scenarios.pure_text.environment import PureTextEnvironment
from ratchet.scenarios.pure_text.episode import AgentAction, Episode, PlayedStep
from ratchet.scenarios.pure_text.playing import advance_episode, begin_episode, whose_turn
from ratchet.scenarios.pure_text.views import AgentView, view_of, write_position

if TYPE_CHECKING:
    from ratchet.scenarios.pure_text.agents.whole_agent import CallContext


def episode_to_rollout(environment: PureTextEnvironment, episode: Episode) -> NestedArrayDict:
    """Return an episode as rollouts [1].

    Steps that were not played are padding without actions and rewards, in which ``done`` and
    ``terminated`` have their final values.
    """
    rules = environment.rules
    size = (rules.num_rounds, len(rules.agent_names), len(rules.channel_names))
    has_tokens = environment.asks_for_tokens
    blank = _blank(*size, has_degrees=rules.scale.has_degrees, has_tokens=has_tokens)
    rollout = blank.clone()
    rollout["rollout_id"][0], rollout["y"][0] = episode.rollout_id, episode.y
    write_position(rules, episode.position, rollout, 0)
    num_played = len(episode.steps)
    rollout["padding"][0, :num_played] = False
    rollout["done"][0, num_played:] = episode.done
    rollout["terminated"][0, num_played:] = episode.terminated
    for step in episode.steps:
        _write_step(rollout, environment, step)
    return rollout


@lru_cache(maxsize=16)
def _blank(
    num_rounds: int, num_agents: int, num_channels: int, *, has_degrees: bool, has_tokens: bool
) -> NestedArrayDict:
    """Create an empty rollout; cached, since copying it is faster."""
    size = (num_rounds, num_agents, num_channels)
    spec = rollout_spec(*size, has_degrees=has_degrees, has_tokens=has_tokens)
    blank = spec.blank(1)
    blank["round"][0] = np.arange(num_rounds)
    return blank


def _write_step(
    rollout: NestedArrayDict, environment: PureTextEnvironment, step: PlayedStep
) -> None:
    rules, t = environment.rules, step.round
    rollout["done"][0, t], rollout["terminated"][0, t] = step.done, step.terminated
    rollout["node_id"][0, t] = step.node_id
    agents = rollout.nested("agents")
    agents["decision"][0, t] = step.decisions
    agents["reward"][0, t] = step.rewards
    for name, action in step.actions.items():
        index = (0, t, rules.places[name])
        for channel in step.channels[rules.places[name]]:
            text = action.messages.get(rules.channel_names[channel])
            agents["message"][(*index, channel)] = text
        prompt = [message.to_dict() for message in action.prompt]
        agents["prompt"][index] = json.dumps(prompt, ensure_ascii=False)
        agents["active"][index] = True
        if rules.scale.has_degrees:
            agents["confidence"][index] = action.confidence
        agents["raw_message"][index] = action.raw_message
        agents["retry_count"][index] = action.retry_count
        agents["token_limit"][index] = action.token_limit
        agents["valid"][index] = action.valid
        agents["prompt_tokens"][index] = action.prompt_tokens
        agents["completion_tokens"][index] = action.completion_tokens
        agents["thinking"][index] = action.thinking or None
        agents["invalid_reason"][index] = action.invalid_reason or None
        if environment.asks_for_tokens and action.tokens is not None:
            agents["tokens"][index] = action.tokens.to_json()


class TextActor(Protocol):
    """An agent that acts on a view."""

    async def act(self, view: AgentView, context: CallContext) -> AgentAction:
        """Return the agent's actions; ``context.call_prefix`` names the rollout and its node."""


async def sample_rollout(
    environment: PureTextEnvironment,
    agents: Mapping[str, TextActor],
    datapoint_id: int,
    seed: int,
    rollout_id: int,
    call_context: CallContext,
) -> NestedArrayDict:
    """Sample one rollout from start to end.

    Parameters
    ----------
    datapoint_id
        An index in the dataset.
    rollout_id
        Its index in the plan.
    call_context
        The context of calls; ``r<rollout_id>`` is added to its ``call_prefix``.

    Returns
    -------
    NestedArrayDict
        Batch [1], with the layout of :func:`ratchet.rollouts.specs.rollout_spec`.
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
    """Run one step, in which all active agents act concurrently; return the episode after it.

    Raises an agent's error after all others of this step have ended.

    Parameters
    ----------
    episode
        An unfinished episode, not modified, so that several steps can start from it.
    call_context
        The context of calls; the ids of calls are its ``call_prefix``, round and agent, so siblings
        need separate prefixes.
    node_id
        The node of a tree that the step leads to.
    """
    actions = await ask_agents(environment, agents, episode, call_context)
    if environment.label is None:
        return advance_episode(environment, episode, actions, node_id=node_id)
    # Computing a label may take long: other episodes continue.
    return await asyncio.to_thread(advance_episode, environment, episode, actions, node_id=node_id)


async def ask_agents(
    environment: PureTextEnvironment,
    agents: Mapping[str, TextActor],
    episode: Episode,
    call_context: CallContext,
) -> dict[str, AgentAction]:
    """Call all active agents concurrently; return actions by name. See :func:`play_step`."""
    rules, position = environment.rules, episode.position
    turns = zip(rules.agent_names, whose_turn(rules, episode), strict=True)
    names = [name for name, turn in turns if turn.channels]
    calls = [agents[name].act(view_of(rules, position, name), call_context) for name in names]
    if len(calls) == 1:
        return {names[0]: await calls[0]}
    # The other calls are billed, so wait for them even if one fails.
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    actions = {}
    for name, outcome in zip(names, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            raise outcome
        actions[name] = outcome
    return actions
