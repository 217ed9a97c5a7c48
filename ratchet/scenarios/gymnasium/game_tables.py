"""Small OpenSpiel games as tables, so that thousands of episodes advance in one step.

The game's tree is expanded once; a state is the number of a node. Episodes are those of
:class:`ratchet.scenarios.gymnasium.matches.MatchSimulator`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyspiel
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ratchet.games.open_spiel import (
    MOST_NODES,
    OpenSpielGame,
    draw,
    draws_inside,
    load_game,
    tensor_of,
    tensor_size,
    thresholds,
)
from ratchet.scenarios.gymnasium.dynamics import Dynamics, State, Transition
from ratchet.scenarios.gymnasium.matches import game_spaces
from ratchet.scenarios.gymnasium.spaces import AgentSpace, AgentSpaces
from ratchet.scenarios.gymnasium.turns import Turn


class GameTree(NamedTuple):
    """Tables of a game's M nodes, the start first; A players, N actions, W children at most."""

    child: Tensor
    """int64 [M, W]: the node after each action or outcome of chance; −1 for none."""
    threshold: Tensor
    """f64 [M, W − 1]: where the outcomes after the first one begin in [0, 1); 1 for none."""
    is_chance: Tensor
    """bool [M]."""
    is_terminal: Tensor
    """bool [M]."""
    acting: Tensor
    """bool [M, A]."""
    legal: Tensor
    """bool [M, A, N]."""
    returns: Tensor
    """f32 [M, A]: rewards since the start."""
    observation: Tensor
    """f32 [M, A, D]; zeros at chance events."""


@lru_cache(maxsize=8)
def expand(dataset: str, parameters: str) -> GameTree | None:
    """Return the tables of a game, given its parameters as JSON.

    None if it has more than ``MOST_NODES`` nodes, simultaneous moves, or draws numbers itself.
    """
    game = load_game(dataset, json.loads(parameters))
    if draws_inside(game) or game.get_type().dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
        return None
    states, children = [game.new_initial_state()], []
    for state in states:  # which grows
        moves = [] if state.is_terminal() else state.legal_actions()
        if len(states) + len(moves) > MOST_NODES:
            return None
        children.append({move: len(states) + index for index, move in enumerate(moves)})
        states.extend(state.child(move) for move in moves)
    return _tabulate(game, states, children)


def _tabulate(
    game: pyspiel.Game, states: Sequence[pyspiel.State], children: Sequence[Mapping[int, int]]
) -> GameTree:
    """Return the tables of nodes, whose children are given by action."""
    num_players, num_actions = game.num_players(), game.num_distinct_actions()
    legal = torch.zeros(len(states), num_players, num_actions, dtype=torch.bool)
    is_chance = torch.tensor([state.is_chance_node() for state in states])
    rows, begins, seen = [], [], []
    nothing = np.zeros((num_players, tensor_size(game)), np.float32)
    for node, (state, after) in enumerate(zip(states, children, strict=True)):
        if state.is_chance_node():
            outcomes = state.chance_outcomes()
            rows.append(torch.tensor([after[outcome] for outcome, _ in outcomes]))
            begins.append(torch.tensor(thresholds(outcomes), dtype=torch.float64))
            seen.append(nothing)
            continue
        row = torch.full((num_actions,), -1)
        row[list(after)] = torch.tensor(list(after.values()), dtype=torch.int64)
        rows.append(row)
        begins.append(torch.ones(0, dtype=torch.float64))
        seen.append(np.stack([tensor_of(state, player) for player in range(num_players)]))
        if after:
            legal[node, state.current_player()] = row >= 0
    return GameTree(
        child=pad_sequence(rows, batch_first=True, padding_value=-1),
        threshold=pad_sequence(begins, batch_first=True, padding_value=1.0),
        is_chance=is_chance,
        is_terminal=torch.tensor([state.is_terminal() for state in states]),
        acting=legal.any(-1),
        legal=legal,
        returns=torch.tensor([state.returns() for state in states]),
        observation=torch.from_numpy(np.stack(seen)),
    )


class GameTable(Dynamics):
    """A game whose states are nodes of its tree; the episodes' seeds decide chance events."""

    def __init__(self, spaces: AgentSpaces, tree: GameTree) -> None:
        self.spaces = spaces
        self.tree = tree

    @property
    def agents(self) -> dict[str, AgentSpace]:
        """The players."""
        return self.spaces.by_name

    def first_state(self, seeds: Tensor) -> State:
        """Start at the first node, after its chance events."""
        if seeds.device != self.tree.child.device:
            self.tree = GameTree(*(table.to(seeds.device) for table in self.tree))
        nothing = torch.zeros_like(seeds)
        return self._resolve_chance({"node": nothing, "seed": seeds, "num_draws": nothing})

    def observe(self, state: State) -> Tensor:
        """Show what each player knows."""
        return self.tree.observation[state["node"]]

    def turn(self, state: State) -> Turn:
        """Return the player that moves, and its legal actions."""
        return Turn(self.tree.acting[state["node"]], self.tree.legal[state["node"]])

    def step(self, state: State, actions: Tensor) -> Transition:
        """Move the player whose turn it is."""
        node, tree = state["node"], self.tree
        player = tree.acting[node].to(torch.int64).argmax(-1, keepdim=True)
        action = actions[..., 0].gather(1, player).squeeze(1)
        following = self._resolve_chance({**state, "node": tree.child[node, action]})
        after = following["node"]
        return Transition(
            following, tree.returns[after] - tree.returns[node], tree.is_terminal[after]
        )

    def _resolve_chance(self, state: State) -> State:
        """Draw the outcomes of chance events until a player moves, or the game ends."""
        node, seed, num_draws = state["node"], state["seed"], state["num_draws"]
        while bool((is_chance := self.tree.is_chance[node]).any()):
            number = draw(seed, num_draws).unsqueeze(-1)
            index = (number >= self.tree.threshold[node]).sum(-1)
            node = torch.where(is_chance, self.tree.child[node, index], node)
            num_draws = num_draws + is_chance
        return {"node": node, "seed": seed, "num_draws": num_draws}


def build_table(dataset: str, parameters: Mapping[str, Any]) -> GameTable | None:
    """Return the dynamics of a game; None if it is too large, see :func:`expand`."""
    tree = expand(dataset, json.dumps(dict(parameters), sort_keys=True))
    if tree is None:
        return None
    return GameTable(game_spaces(OpenSpielGame(dataset, **parameters)), tree)
