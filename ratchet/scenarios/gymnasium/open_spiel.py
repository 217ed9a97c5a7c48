"""OpenSpiel's games for networks, simulated one episode at a time.

An agent observes its information state, or an observation where a game has no tensors of those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ratchet.errors import ParameterError
from ratchet.games.open_spiel import OpenSpielGame, seats_of
from ratchet.scenarios.gymnasium.simulators import SimulatedStep, Simulator
from ratchet.scenarios.gymnasium.spaces import AgentSpace, AgentSpaces, DiscreteActions
from ratchet.scenarios.gymnasium.turns import Turn

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyspiel

    from ratchet.scenarios.gymnasium.simulators import Floats


def game_spaces(game: pyspiel.Game) -> AgentSpaces:
    """Return the players' spaces; raises ParameterError for a game without tensors."""
    kind = game.get_type()
    if not (kind.provides_information_state_tensor or kind.provides_observation_tensor):
        raise ParameterError(
            f"dataset: OpenSpiel's {kind.short_name} has neither tensors of information states nor"
            " of observations, expected a game with one of them."
        )
    if kind.provides_information_state_tensor:
        size = game.information_state_tensor_size()
    else:
        size = game.observation_tensor_size()
    space = AgentSpace(size, DiscreteActions((game.num_distinct_actions(),)))
    return AgentSpaces(dict.fromkeys(seats_of(game), space))


def observe(game: pyspiel.Game, state: pyspiel.State) -> Floats:
    """Return the players' observations, f32 [A, D]; zeros at the end of the game."""
    if state.is_terminal():
        spaces = game_spaces(game)
        return np.zeros((len(spaces.names), spaces.observation_width), np.float32)
    if game.get_type().provides_information_state_tensor:
        tensors = map(state.information_state_tensor, range(game.num_players()))
    else:
        tensors = map(state.observation_tensor, range(game.num_players()))
    return np.array(list(tensors), np.float32)


class OpenSpielSimulator(Simulator):
    """An OpenSpiel game; ``max_episode_steps`` is a time limit in addition to the game's end."""

    def __init__(
        self, dataset: str, parameters: Mapping[str, Any], max_episode_steps: int | None = None
    ) -> None:
        self._game = OpenSpielGame(dataset, **parameters)
        self.spaces = game_spaces(self._game.game)
        self.max_episode_steps = max_episode_steps

    @property
    def game(self) -> pyspiel.Game:
        """OpenSpiel's game."""
        return self._game.game

    def reset(self, seed: int) -> Floats:
        """Start an episode."""
        self._match, self._num_steps = self._game.begin(seed), 0
        return observe(self.game, self._match.state)

    def step(self, actions: npt.NDArray[Any]) -> SimulatedStep:
        """Move the player whose turn it is, or all."""
        match, seats = self._match, self._game.seats
        before = np.array(match.state.returns())
        match.play({seat: int(actions[seats.index(seat), 0]) for seat in match.acting})
        self._num_steps += 1
        over = match.state.is_terminal()
        late = self.max_episode_steps is not None and self._num_steps >= self.max_episode_steps
        return SimulatedStep(
            observe(self.game, match.state),
            (np.array(match.state.returns()) - before).astype(np.float32),
            np.full(len(seats), over),
            np.full(len(seats), late and not over),
        )

    def turn(self) -> Turn:
        """Return the players that move, and their legal actions."""
        players, state = range(len(self._game.seats)), self._match.state
        legal = torch.zeros(len(players), self.game.num_distinct_actions(), dtype=torch.bool)
        if not state.is_terminal():
            for player in players:
                legal[player, state.legal_actions(player)] = True
        return Turn(legal.any(-1), legal)

    def close(self) -> None:
        """Do nothing."""
