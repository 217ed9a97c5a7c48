"""Steps of a single episode in plain values.

A step takes microseconds, since the protocol is queried once per game and not at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import torch

from ratchet.errors import CustomCodeError, RolloutError
from ratchet.rollouts.dataset import NestedArrayDictDataset
from ratchet.rollouts.specs import NO_DECISION
from ratchet.scenarios.pure_text.episode import (
    AgentAction,
    Episode,
    PlayedStep,
    Position,
    RawMessage,
    SentMessage,
)
from ratchet.scenarios.pure_text.rules import (
    RoundRules,
    Turn,
    crowded_channel,
    endless,
    unsure_rewards,
)

_SILENT = Turn()


class EpisodeSource(Protocol):
    """Part of ``PureTextEnvironment`` that episodes need."""

    dataset: NestedArrayDictDataset
    rules: RoundRules
    label: Callable[[Position], int] | None

    def prover_stance(self, seed: int) -> int:
        """Return the stance of a single prover in the episode of a seed."""


def begin_episode(
    environment: EpisodeSource, datapoint_id: int, seed: int, rollout_id: int = 0
) -> Episode:
    """Start an episode on a datapoint, given by its index in the dataset.

    Its label is the datapoint's; 0 if the dataset has none.
    """
    data = environment.dataset
    position = Position(
        datapoint_id=int(data["datapoint_id"][datapoint_id]),
        seed=seed,
        prover_stance=environment.prover_stance(seed),
        question=data["question"][datapoint_id],
        solution=data["solution"][datapoint_id],
    )
    nobody = (False,) * len(environment.rules.agent_names)
    y = int(data["y"][datapoint_id]) if "y" in data.fields else 0
    return Episode(rollout_id, y, position, nobody)


def whose_turn(rules: RoundRules, episode: Episode) -> tuple[Turn, ...]:
    """Return the allowed actions of each agent; empty once the episode is done."""
    if episode.done:
        return (_SILENT,) * len(rules.agent_names)
    turns = rules.turns(episode.position.seed)[episode.position.round]
    if not any(episode.agents_done):
        return turns
    return tuple(
        _SILENT if over else turn for turn, over in zip(turns, episode.agents_done, strict=True)
    )


def advance_episode(
    environment: EpisodeSource,
    episode: Episode,
    actions: Mapping[str, AgentAction],
    *,
    node_id: int = -1,
) -> Episode:
    """Apply the agents' actions.

    If labels are made by play, a step with a decision or the end of the episode sets ``y``.

    Parameters
    ----------
    episode
        An unfinished episode, which is not modified.
    actions
        The actions of each agent whose turn it is.
    node_id
        The node of a tree that the step leads to.
    """
    rules, position = environment.rules, episode.position
    turns = whose_turn(rules, episode)
    _check_actions(rules, episode, turns, actions)
    named = list(zip(rules.agent_names, turns, strict=True))
    decisions = [actions[name].decision if turn.channels else NO_DECISION for name, turn in named]
    confidence = _confidence(rules, turns, actions)
    after = _judge(rules, episode, tuple(decisions), confidence)
    if environment.label is not None and (after.done or set(decisions) != {NO_DECISION}):
        labelled_position = _written(rules, position, turns, actions, over=True)
        episode = replace(episode, y=_label(environment.label, labelled_position))
        after = _judge(rules, episode, tuple(decisions), confidence)
    if not after.done and position.round + 1 >= rules.num_rounds:
        raise endless(rules.handler)
    step = PlayedStep(
        round=position.round,
        channels=tuple([turn.channels for turn in turns]),
        actions={name: actions[name] for name in _acting(rules, turns)},
        decisions=tuple(
            rules.counted_decision(decision, episode.y) if turn.may_decide else NO_DECISION
            for decision, turn in zip(decisions, turns, strict=True)
        ),
        rewards=_penalized(rules, turns, actions, after.rewards),
        done=after.done,
        terminated=after.terminated,
        node_id=node_id,
    )
    return Episode(
        rollout_id=episode.rollout_id,
        y=episode.y,
        position=_written(rules, position, turns, actions, over=after.done),
        agents_done=after.agents_done,
        steps=(*episode.steps, step),
        done=after.done,
        terminated=after.terminated,
    )


class _After(NamedTuple):
    """Outcome of a step."""

    rewards: tuple[float, ...]
    agents_done: tuple[bool, ...]
    done: bool
    terminated: bool


def _confidence(
    rules: RoundRules, turns: tuple[Turn, ...], actions: Mapping[str, AgentAction]
) -> float:
    """Return the verifier's confidence, if its scale has degrees."""
    if not rules.scale.has_degrees:
        return 1.0
    verifier = rules.handler.verifier_names[0]
    return actions[verifier].confidence if turns[rules.places[verifier]].channels else 1.0


def _penalized(
    rules: RoundRules,
    turns: tuple[Turn, ...],
    actions: Mapping[str, AgentAction],
    rewards: tuple[float, ...],
) -> tuple[float, ...]:
    """Add the penalty for replies that couldn't be read."""
    penalty = rules.handler.common.invalid_response_penalty
    if not penalty:
        return rewards
    names = zip(rules.agent_names, turns, rewards, strict=True)
    return tuple(
        reward + penalty if turn.channels and not actions[name].valid else reward
        for name, turn, reward in names
    )


def _label(label: Callable[[Position], int], position: Position) -> int:
    """Return the label of an episode, given its messages."""
    y = label(position)
    if not isinstance(y, int | np.integer | np.bool_) or y not in (0, 1):
        raise CustomCodeError(
            f"datapoint {position.datapoint_id}, round {position.round}: label(position) of the"
            f" scenario returned {y!r}, expected 0 or 1."
        )
    return int(y)


def _judge(
    rules: RoundRules, episode: Episode, decisions: tuple[int, ...], confidence: float
) -> _After:
    position = episode.position
    outcome = rules.outcome(
        position.round, position.seed, episode.y, position.prover_stance, decisions, confidence
    )
    if outcome is None:
        return _ask_handler(rules, episode, decisions, confidence)
    over = outcome.decided or outcome.terminated
    agents_done = (True,) * len(decisions) if over else episode.agents_done
    return _After(outcome.rewards, agents_done, over, outcome.terminated)


def _ask_handler(
    rules: RoundRules, episode: Episode, decisions: tuple[int, ...], confidence: float
) -> _After:
    """Judge a step of a protocol that has its own way, in a batch of one."""
    position = episode.position
    state: dict[str | tuple[str, str], torch.Tensor] = {
        "round": torch.tensor([position.round]),
        "seed": torch.tensor([position.seed]),
        "y": torch.tensor([episode.y]),
        "done": torch.tensor([episode.done]),
        "terminated": torch.tensor([episode.terminated]),
        ("agents", "done"): torch.tensor([episode.agents_done]),
        ("agents", "decision"): torch.tensor([decisions]),
    }
    stance = torch.tensor([position.prover_stance])
    step = rules.judge(state, stance)
    rewards = tuple(step.reward[0].tolist())
    if confidence != 1:
        opposite = [d if d == NO_DECISION else 1 - d for d in decisions]
        other = rules.judge({**state, ("agents", "decision"): torch.tensor([opposite])}, stance)
        rewards = unsure_rewards(rewards, tuple(other.reward[0].tolist()), confidence)
    over = bool(step.shared_done | step.terminated)
    agents_done = tuple(done or over for done in step.agent_done[0].tolist())
    return _After(rewards, agents_done, over, bool(step.terminated))


def _acting(rules: RoundRules, turns: tuple[Turn, ...]) -> list[str]:
    return [name for name, turn in zip(rules.agent_names, turns, strict=True) if turn.channels]


def _check_actions(
    rules: RoundRules, episode: Episode, turns: tuple[Turn, ...], actions: Mapping[str, AgentAction]
) -> None:
    where = f"datapoint {episode.position.datapoint_id}, round {episode.position.round}"
    if episode.done:
        raise RolloutError(f"{where}: the episode is over, expected an unfinished one.")
    missing = [name for name in _acting(rules, turns) if name not in actions]
    if missing:
        raise RolloutError(
            f"{where}: got actions of {sorted(actions)}, expected those of {missing} too, since it"
            " is their turn."
        )


def _written(
    rules: RoundRules,
    position: Position,
    turns: tuple[Turn, ...],
    actions: Mapping[str, AgentAction],
    *,
    over: bool,
) -> Position:
    """Add the messages of a round; messages out of turn are dropped."""
    sent_messages: dict[int, SentMessage] = {}
    raw: list[RawMessage] = []
    stance = position.prover_stance
    for name, turn in zip(rules.agent_names, turns, strict=True):
        if not turn.channels:
            continue
        action = actions[name]
        raw.append(RawMessage(position.round, name, action.raw_message))
        for index in turn.channels:
            channel = rules.channel_names[index]
            if channel not in action.messages:
                continue
            if index in sent_messages:
                speaks = [index in other.channels for other in turns]
                raise crowded_channel(rules.handler, position.round, index, speaks)
            sent_messages[index] = SentMessage(
                position.round, channel, name, action.messages[channel]
            )
            stance = rules.argued_stance(stance, name, sent_messages[index].text)
    return replace(
        position,
        prover_stance=stance,
        round=position.round if over else position.round + 1,
        messages=(*position.messages, *(sent_messages[index] for index in sorted(sent_messages))),
        raw_messages=(*position.raw_messages, *raw),
    )
