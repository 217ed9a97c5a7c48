"""Games of OpenSpiel 2: turns, simultaneous moves, chance, and information states as text."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyspiel

from ratchet.errors import ParameterError, nearest, shown
from ratchet.games.match import Game, Match, View
from ratchet.language_models.types import ChatMessage
from ratchet.seeding import derive_seed, numpy_generator

_RNG_SEED = "rng_seed"
_PREFIX = re.compile(r"^[,\s]*(\[P\d+\])?\s*")
"""What some games write before the text of an action."""


class OpenSpielGame(Game):
    """One of OpenSpiel's games, with its parameters.

    Chance is drawn from a match's seed: the k-th draw depends on the seed and k alone. Games that
    draw inside are loaded with that seed.
    """

    packages: ClassVar[tuple[str, ...]] = ("open-spiel",)

    def __init__(self, name: str, **parameters: str | float | bool) -> None:
        known = pyspiel.registered_names()
        if name not in known:
            raise ParameterError(
                f"dataset: OpenSpiel has no game {shown(name)}.{nearest(name, known)}"
            )
        self._name, self._parameters = name, dict(parameters)
        try:
            self._game = pyspiel.load_game(name, self._parameters)
        except (pyspiel.SpielError, RuntimeError) as error:
            raise ParameterError(
                f"dataset: OpenSpiel's {name} cannot be loaded with {self._parameters}: {error}."
            ) from error
        kind = self._game.get_type()
        if kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
            raise ParameterError(
                f"dataset: OpenSpiel's {name} is a mean-field game, expected one of turns or of"
                " simultaneous moves."
            )
        self._draws_inside = _RNG_SEED in kind.parameter_specification
        self.seats = tuple(f"player_{n}" for n in range(self._game.num_players()))
        self.forfeit = float(self._game.min_utility())

    def begin(self, seed: int) -> OpenSpielMatch:
        """Start a match."""
        game = self._game
        if self._draws_inside:
            inner = derive_seed(seed, "rng") % 2**31
            game = pyspiel.load_game(self._name, {**self._parameters, _RNG_SEED: inner})
        return OpenSpielMatch(game, self.seats, seed)

    def characters(self) -> str:
        """Return printable characters."""
        return string.ascii_letters + string.digits + string.punctuation + " \n"


class OpenSpielMatch(Match):
    """A match, with OpenSpiel's state."""

    def __init__(self, game: Any, seats: Sequence[str], seed: int) -> None:  # noqa: ANN401
        kind = game.get_type()
        self.state = game.new_initial_state()
        self._seats, self._seed, self._num_draws = seats, seed, 0
        self._has_information_state = kind.provides_information_state_string
        self._draw_chance()

    @property
    def acting(self) -> list[str]:
        """The seats whose turn it is."""
        if self.state.is_terminal():
            return []
        if self.state.is_simultaneous_node():
            return [seat for n, seat in enumerate(self._seats) if self.state.legal_actions(n)]
        return [self._seats[self.state.current_player()]]

    def view(self, seat: str) -> View:
        """Return the seat's information state, or its observation, and its legal actions."""
        player, state = self._seats.index(seat), self.state
        text = (
            state.information_state_string(player)
            if self._has_information_state
            else state.observation_string(player)
        )
        legal = {
            action: _PREFIX.sub("", state.action_to_string(player, action))
            for action in state.legal_actions(player)
        }
        return View((ChatMessage("user", text.strip() or "(nothing yet)"),), legal)

    def play(self, actions: Mapping[str, int]) -> None:
        """Apply the actions, then draw chance."""
        if self.state.is_simultaneous_node():
            # OpenSpiel wants an entry for seats that have no action, which it ignores
            self.state.apply_actions([actions.get(seat, 0) for seat in self._seats])
        else:
            (action,) = actions.values()
            self.state.apply_action(action)
        self._draw_chance()

    @property
    def rewards(self) -> dict[str, float]:
        """The seats' returns."""
        return dict(zip(self._seats, map(float, self.state.returns()), strict=True))

    def _draw_chance(self) -> None:
        while self.state.is_chance_node():
            actions, chances = zip(*self.state.chance_outcomes(), strict=True)
            generator = numpy_generator(self._seed, "chance", self._num_draws)
            self._num_draws += 1
            index = np.searchsorted(np.cumsum(chances), generator.random(), side="right")
            self.state.apply_action(actions[min(int(index), len(actions) - 1)])
