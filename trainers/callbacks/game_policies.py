"""Policies of trained agents as tables over the information states of a small game."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ratchet.games.open_spiel import seats_of, tensor_of, view_of
from ratchet.language_models.types import ChatMessage
from ratchet.rollouts.batch import Batch
from ratchet.rollouts.trajectory import Trajectory
from ratchet.scenarios.language_task.task import prompt_format
from trainers.language.self_hosted import SelfHostedTrainer
from trainers.match_policies import player_policies

if TYPE_CHECKING:
    import pyspiel

    from ratchet.games.information_states import InformationStates
    from ratchet.scenarios.language_task.rollout_generation import Rules
    from trainers.language.trainer import LanguageTrainer
    from trainers.tensordict.rl import TensorDictRlTrainer


def network_policy(trainer: TensorDictRlTrainer, states: InformationStates) -> Tensor:
    """Return networks' probabilities of actions in all information states, f64 [I, N]."""
    players = states.player.tolist()
    seen = [tensor_of(state, p) for state, p in zip(states.examples, players, strict=True)]
    return player_policies(trainer, np.stack(seen), states.legal, states.player)


@torch.no_grad()
def language_policy(
    trainer: LanguageTrainer, game: pyspiel.Game, states: InformationStates
) -> Tensor:
    """Return language models' probabilities of actions in all information states, f64 [I, N].

    They are those of the actions' texts as replies, within ``max_tokens``, relative to all legal
    ones. Of agents without a model, functions are certain, and others have equal probabilities.
    """
    policy = states.legal.double() / states.legal.sum(-1, keepdim=True)
    rules = trainer.scenario_instance.test_environment.rules
    for player, agent in enumerate(seats_of(game)):
        rows = (states.player == player).nonzero().flatten().tolist()
        choose = trainer.scenario_instance.agents[agent].choose
        if choose is not None:
            actions = [choose(view_of(states.examples[row], player)) for row in rows]
            policy[rows] = 0.0
            policy[rows, actions] = 1.0
        if agent not in trainer.model_names:
            continue
        learner = trainer.learners[trainer.model_names[agent]]
        assert isinstance(learner, SelfHostedTrainer)  # checked by the callback
        parameters = trainer.scenario_instance.agents[agent].parameters
        replies = _replies(states, rows, learner, rules, parameters.max_tokens)
        batch = Batch.from_trajectories(list(replies.values()), learner.model.pad_token_id)
        columns = [batch.values[name] for name in ("input_ids", "attention_mask", "loss_mask")]
        scores = learner.model.score(*columns, temperature=parameters.temperature)
        logits = torch.full(states.legal.shape, -torch.inf, dtype=torch.float64)
        for (row, action), log_probs in zip(replies, scores.log_probs.double().cpu(), strict=True):
            logits[row, action] = log_probs.sum()
        policy[rows] = logits[rows].softmax(-1)
    return policy


def _replies(
    states: InformationStates,
    rows: list[int],
    learner: SelfHostedTrainer,
    rules: Rules,
    max_tokens: int,
) -> dict[tuple[int, int], Trajectory]:
    """Return the conversation up to each information state with each legal action as reply."""
    writer = prompt_format(learner.tokenizer, chat=rules.chat)
    conversations: dict[tuple[int, int], tuple[list[int], list[ChatMessage]]] = {}
    replies = {}
    for row in rows:  # parents first
        view = view_of(states.examples[row], int(states.player[row]))
        parent = int(states.parent[row]), int(states.parent_action[row])
        if parent in conversations:
            tokens, messages = conversations[parent]
            more = writer.more(messages[:-1], messages[-1].content, view.messages)
            messages = [*messages, *view.messages]
            tokens = writer.prompt(messages) if more is None else [*tokens, *more]
        else:
            messages = rules.opening(view.messages)
            tokens = writer.prompt(messages)
        for action, text in view.legal.items():
            reply = writer.reply(text)[:max_tokens]
            together = [*tokens, *reply]
            replies[row, action] = Trajectory(
                together, [0] * len(tokens) + [1] * len(reply), [0.0] * len(together)
            )
            said = ChatMessage("assistant", learner.tokenizer.decode(reply))
            conversations[row, action] = together, [*messages, said]
    return replies
