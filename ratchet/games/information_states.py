"""Information states of OpenSpiel games: policies as tables, their averages, distances to Nash."""

from __future__ import annotations

from typing import NamedTuple

import pyspiel
import torch
from torch import Tensor


class InformationStates(NamedTuple):
    """Information of players at their moves: I rows, parents first; N actions."""

    names: list[str]
    """OpenSpiel's strings."""
    player: Tensor
    """int64 [I]: the player that moves."""
    examples: list[pyspiel.State]
    """A state of the game in which the player has this information."""
    legal: Tensor
    """bool [I, N]."""
    parent: Tensor
    """int64 [I]: the player's previous information state, a row before this one; −1 for none."""
    parent_action: Tensor
    """int64 [I]: its action there."""


def information_states(game: pyspiel.Game) -> InformationStates:
    """List the information states of a sequential game with perfect recall."""
    rows: dict[str, int] = {}
    players, examples, legal, parents = [], [], [], []
    nothing = ((-1, 0),) * game.num_players()
    stack = [(game.new_initial_state(), nothing)]
    while stack:
        state, latest = stack.pop()  # each player's latest information state and action
        if state.is_terminal():
            continue
        moves = state.legal_actions()
        if state.is_chance_node():
            stack += [(state.child(outcome), latest) for outcome in moves]
            continue
        player, name = state.current_player(), state.information_state_string()
        if name not in rows:
            rows[name] = len(rows)
            players.append(player)
            examples.append(state)
            legal.append(torch.zeros(game.num_distinct_actions(), dtype=torch.bool))
            legal[-1][moves] = True
            parents.append(latest[player])
        for move in moves:
            moved = (*latest[:player], (rows[name], move), *latest[player + 1 :])
            stack.append((state.child(move), moved))
    parent, parent_action = torch.tensor(parents).unbind(1)
    return InformationStates(
        list(rows),
        torch.tensor(players),
        examples,
        torch.stack(legal),
        parent,
        parent_action,
    )


def realisation_weights(states: InformationStates, policy: Tensor) -> Tensor:
    """Return how often a player's own actions lead to each action: f64 [I, N].

    ``policy``, f64 [I, N], are the actions' probabilities. Policies are averaged by the sums of
    these weights, which :func:`policy_from` turns into probabilities.
    """
    weights = policy.clone()
    steps = zip(states.parent.tolist(), states.parent_action.tolist(), strict=True)
    for row, (parent, action) in enumerate(steps):
        if parent >= 0:
            weights[row] *= weights[parent, action]
    return weights


def policy_from(states: InformationStates, weights: Tensor) -> Tensor:
    """Return the policy f64 [I, N] of summed weights; uniform where these are zero."""
    totals = weights.sum(-1, keepdim=True)
    uniform = states.legal.double() / states.legal.sum(-1, keepdim=True)
    return torch.where(totals > 0, weights / totals, uniform)


def nash_conv(game: pyspiel.Game, states: InformationStates, policy: Tensor) -> float:
    """Return the sum of the players' gains by best responses to a policy; 0 at an equilibrium."""
    return float(pyspiel.nash_conv(game, pyspiel.TabularPolicy(_table(states, policy))))


def expected_returns(game: pyspiel.Game, states: InformationStates, policy: Tensor) -> list[float]:
    """Return each player's expected reward if all play a policy."""
    table = pyspiel.TabularPolicy(_table(states, policy))
    start, no_limit = game.new_initial_state(), -1
    return list(pyspiel.expected_returns(start, table, no_limit, True))


def _table(states: InformationStates, policy: Tensor) -> dict[str, list[tuple[int, float]]]:
    """Return a policy in OpenSpiel's form: legal actions and their probabilities."""
    rows = zip(states.names, states.legal.tolist(), policy.tolist(), strict=True)
    return {
        name: [(action, row[action]) for action, is_legal in enumerate(legal) if is_legal]
        for name, legal, row in rows
    }
