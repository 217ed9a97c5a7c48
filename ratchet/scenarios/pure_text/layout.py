"""Write a finished episode down as a rollout, in the layout of ``ratchet.rollouts.specs``."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np

from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.specs import rollout_spec
from ratchet.scenarios.pure_text.environment import PureTextEnvironment
from ratchet.scenarios.pure_text.episode import Episode, PlayedStep


def episode_to_rollout(environment: PureTextEnvironment, episode: Episode) -> NestedArrayDict:
    """Return an episode as rollouts [1].

    Steps that were not played are padding: nobody acts, nothing is paid, and ``done`` and
    ``terminated`` stay what they were at the end.
    """
    rules, position = environment.rules, episode.position
    size = (rules.num_rounds, len(rules.agent_names), len(rules.channel_names))
    has_tokens = environment.asks_for_tokens
    blank = _blank(*size, has_degrees=rules.scale.has_degrees, has_tokens=has_tokens)
    rollout = blank.clone()
    for key, value in (
        ("rollout_id", episode.rollout_id),
        ("datapoint_id", position.datapoint_id),
        ("seed", position.seed),
        ("y", episode.y),
        ("prover_stance", position.prover_stance),
        ("question", position.question),
        ("solution", position.solution),
    ):
        rollout[key][0] = value
    num_played = len(episode.steps)
    rollout["padding"][0, :num_played] = False
    rollout["done"][0, num_played:] = episode.done
    rollout["terminated"][0, num_played:] = episode.terminated
    for message in position.messages:
        place = (0, message.round, rules.channel_names.index(message.channel))
        rollout["message_history"][place] = message.text
        rollout["message_agent_id"][place] = rules.places[message.speaker]
    for raw in position.raw_messages:
        rollout["raw_message_history"][0, raw.round, rules.places[raw.speaker]] = raw.text
    for step in episode.steps:
        _write_step(rollout, environment, step)
    return rollout


@lru_cache(maxsize=16)
def _blank(
    num_rounds: int, num_agents: int, num_channels: int, *, has_degrees: bool, has_tokens: bool
) -> NestedArrayDict:
    """Make a rollout in which nothing happened; to be copied, since making it takes longer."""
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
        place = (0, t, rules.places[name])
        for channel in step.channels[rules.places[name]]:
            text = action.messages.get(rules.channel_names[channel])
            agents["message"][(*place, channel)] = text
        prompt = [message.to_dict() for message in action.prompt]
        agents["prompt"][place] = json.dumps(prompt, ensure_ascii=False)
        agents["active"][place] = True
        if rules.scale.has_degrees:
            agents["confidence"][place] = action.confidence
        agents["raw_message"][place] = action.raw_message
        agents["retry_count"][place] = action.retry_count
        agents["token_limit"][place] = action.token_limit
        agents["valid"][place] = action.valid
        agents["prompt_tokens"][place] = action.prompt_tokens
        agents["completion_tokens"][place] = action.completion_tokens
        agents["thinking"][place] = action.thinking or None
        agents["invalid_reason"][place] = action.invalid_reason or None
        if environment.asks_for_tokens and action.tokens is not None:
            agents["tokens"][place] = action.tokens.to_json()
