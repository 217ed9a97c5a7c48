"""Games of seats for networks, simulated one match at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ratchet.errors import CustomCodeError, ParameterError
from ratchet.scenarios.gymnasium.simulators import SimulatedStep, Simulator
from ratchet.scenarios.gymnasium.spaces import AgentSpace, AgentSpaces, DiscreteActions
from ratchet.scenarios.gymnasium.turns import Turn

if TYPE_CHECKING:
    import numpy.typing as npt

    from ratchet.games.match import Floats, Game, Match


def game_spaces(game: Game) -> AgentSpaces:
    """Return the seats' spaces; raises ParameterError for a game without tensors."""
    if not game.observation_size or not game.num_actions:
        raise ParameterError(
            f"dataset: {type(game).__name__} has observation_size={game.observation_size} and"
            f" num_actions={game.num_actions}, expected more than 0, so that networks can play."
        )
    space = AgentSpace(game.observation_size, DiscreteActions((game.num_actions,)))
    return AgentSpaces(dict.fromkeys(game.seats, space))


class MatchSimulator(Simulator):
    """A game's matches; ``max_episode_steps`` is a time limit in addition to their end."""

    _match: Match

    def __init__(self, game: Game, max_episode_steps: int | None = None) -> None:
        self._game = game
        self.spaces = game_spaces(game)
        self.max_episode_steps = max_episode_steps

    def reset(self, seed: int) -> Floats:
        """Start a match."""
        self._match, self._num_steps = self._game.begin(seed), 0
        return self._observe()

    def step(self, actions: npt.NDArray[Any]) -> SimulatedStep:
        """Play the actions of the seats whose turn it is."""
        match, seats = self._match, self._game.seats
        before = dict(match.rewards)
        match.play({seat: int(actions[seats.index(seat), 0]) for seat in match.acting})
        self._num_steps += 1
        over = not match.acting
        late = self.max_episode_steps is not None and self._num_steps >= self.max_episode_steps
        return SimulatedStep(
            self._observe(),
            np.array([match.rewards[seat] - before[seat] for seat in seats], np.float32),
            np.full(len(seats), over),
            np.full(len(seats), late and not over),
        )

    def _observe(self) -> Floats:
        """Return the seats' observations, f32 [A, D]; zeros at the end of the match."""
        seats, size = self._game.seats, self._game.observation_size
        if not self._match.acting:
            return np.zeros((len(seats), size), np.float32)
        rows = [np.asarray(self._match.observe(seat), np.float32) for seat in seats]
        for seat, row in zip(seats, rows, strict=True):
            if row.shape != (size,):
                raise CustomCodeError(
                    f"{type(self._match).__name__}.observe({seat!r}): got the shape {row.shape},"
                    f" expected ({size},), the game's observation_size."
                )
        return np.stack(rows)

    def turn(self) -> Turn:
        """Return the acting seats, and their legal actions."""
        seats, num_actions = self._game.seats, self._game.num_actions
        legal = torch.zeros(len(seats), num_actions, dtype=torch.bool)
        for seat in self._match.acting:
            actions = list(self._match.legal(seat))
            if max(actions) >= num_actions:
                raise CustomCodeError(
                    f"{type(self._match).__name__}.legal({seat!r}): got the actions {actions},"
                    f" expected 0 to {num_actions - 1}, since the game's num_actions is"
                    f" {num_actions}."
                )
            legal[seats.index(seat), actions] = True
        return Turn(legal.any(-1), legal)

    def close(self) -> None:
        """Do nothing."""
