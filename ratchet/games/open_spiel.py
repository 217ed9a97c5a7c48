"""OpenSpiel's games by name, ``open_spiel/kuhn_poker``.

A match's seed decides each of its chance events, which are numbered: see :func:`draw`.
"""

from __future__ import annotations

import re
import string
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import pyspiel
from torch import Tensor

from ratchet.errors import ParameterError, UnknownNameError, nearest
from ratchet.games import OPEN_SPIEL
from ratchet.games.match import Game, Match, View
from ratchet.language_models.types import ChatMessage

if TYPE_CHECKING:
    from ratchet.games.match import Floats

_Integers = TypeVar("_Integers", int, Tensor)
_SEED = "rng_seed"
"""The parameter of games that draw random numbers themselves."""
_MIXING = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))
"""Shifts and factors of SplitMix64 (Steele et al. 2014)."""
_UNIT = 2.0**-53
_PRINTABLE = string.ascii_letters + string.digits + string.punctuation + " \n"
MOST_NODES = 20_000
"""Nodes of the tree of a small game, which is visited in some tenths of a second."""
_PREFIX = re.compile(r"^[,\s]*(\[P\d+\])?\s*")
"""What some games write before the text of an action."""


def load_game(dataset: str, parameters: Mapping[str, Any]) -> pyspiel.Game:
    """Load the game ``open_spiel/NAME`` with its parameters."""
    name = dataset.removeprefix(OPEN_SPIEL)
    kinds = {kind.short_name: kind for kind in pyspiel.registered_games()}
    if name not in kinds:
        raise UnknownNameError(f"dataset: OpenSpiel has no game {name!r}.{nearest(name, kinds)}")
    expected = kinds[name].parameter_specification
    unknown = sorted(set(parameters) - set(expected))
    if unknown:
        raise ParameterError(
            f"dataset: {dataset} has no parameter {unknown[0]!r}.{nearest(unknown[0], expected)}"
        )
    try:
        game = pyspiel.load_game(name, dict(parameters))
    except pyspiel.SpielError as error:
        raise ParameterError(
            f"dataset: {dataset} got the parameters {dict(parameters)}: {error}"
        ) from error
    if game.get_type().dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
        raise ParameterError(f"dataset: {dataset!r} is a mean-field game, expected one of players.")
    return game


def draws_inside(game: pyspiel.Game) -> bool:
    """Return whether a game draws random numbers itself, from its own seed."""
    return bool(game.get_type().chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC)


def is_zero_sum_for_two(game: pyspiel.Game) -> bool:
    """Return whether a game has two players, whose rewards always have the sum zero."""
    is_zero_sum = game.get_type().utility == pyspiel.GameType.Utility.ZERO_SUM
    return bool(is_zero_sum and game.num_players() == 2)


def seats_of(game: pyspiel.Game) -> tuple[str, ...]:
    """Return the names of the players: ``player_0``, ``player_1`` …."""
    return tuple(f"player_{player}" for player in range(game.num_players()))


def draw(seed: Tensor, number: Tensor) -> Tensor:
    """Return the numbers f64 [E] in [0, 1) of matches' chance events, given both int64 [E].

    By a hash, so that any event of any number of matches is drawn in one operation.
    """
    return _hash(seed, number).double() * _UNIT


def _hash(seed: _Integers, number: _Integers) -> _Integers:
    """Return 53 bits for each chance event."""
    mixed = (seed * 2**20 + number + 1) * -0x61C8864680B583EB
    for shift, factor in _MIXING:
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    return _shifted(mixed ^ _shifted(mixed, 31), 11)


def _shifted(numbers: _Integers, bits: int) -> _Integers:
    """Shift to the right, filling up with zeros; of longer integers, the lowest 64 bits."""
    shifted: _Integers = (numbers >> bits) & (2 ** (64 - bits) - 1)
    return shifted


def thresholds(outcomes: Sequence[tuple[int, float]]) -> list[float]:
    """Return the starts in [0, 1) of the outcomes after the first one."""
    return list(accumulate(probability for _, probability in outcomes))[:-1]


def view_of(state: pyspiel.State, player: int) -> View:
    """Return a player's information state, or its observation, and its legal actions."""
    is_complete = state.get_game().get_type().provides_information_state_string
    read = state.information_state_string if is_complete else state.observation_string
    legal = {
        action: _PREFIX.sub("", state.action_to_string(player, action))
        for action in state.legal_actions(player)
    }
    return View((ChatMessage("user", read(player).strip() or "(nothing yet)"),), legal)


def tensor_size(game: pyspiel.Game) -> int:
    """Return the length of :func:`tensor_of`; 0 if the game has no tensors."""
    kind = game.get_type()
    if kind.provides_information_state_tensor:
        return int(game.information_state_tensor_size())
    return int(game.observation_tensor_size()) if kind.provides_observation_tensor else 0


def tensor_of(state: pyspiel.State, player: int) -> Floats:
    """Return a player's information state, or its observation, f32 [D]; zeros at the end."""
    game = state.get_game()
    if state.is_terminal():
        return np.zeros(tensor_size(game), np.float32)
    is_complete = game.get_type().provides_information_state_tensor
    read = state.information_state_tensor if is_complete else state.observation_tensor
    return np.array(read(player), np.float32)


class OpenSpielGame(Game):
    """One of OpenSpiel's games, with its parameters."""

    packages: ClassVar[tuple[str, ...]] = ("open-spiel",)

    def __init__(self, dataset: str, **parameters: str | float | bool) -> None:
        self._dataset, self._parameters = dataset, parameters
        self.game = load_game(dataset, parameters)
        self.seats = seats_of(self.game)
        self.forfeit = float(self.game.min_utility())
        self.observation_size = tensor_size(self.game)
        self.num_actions = self.game.num_distinct_actions()
        if not draws_inside(self.game):
            return
        if _SEED in parameters:
            raise ParameterError(
                f"dataset: {dataset} got {_SEED}={parameters[_SEED]!r}, but each match's seed sets"
                " it. Leave it out."
            )
        if _SEED not in self.game.get_type().parameter_specification:
            raise ParameterError(
                f"dataset: {dataset!r} draws random numbers that no seed decides, so that a resumed"
                " run would differ; expected another game."
            )

    def begin(self, seed: int) -> OpenSpielMatch:
        """Start a match."""
        game = self.game
        if draws_inside(game):
            game = load_game(self._dataset, {**self._parameters, _SEED: seed % 2**31})
        return OpenSpielMatch(game, seed)

    def characters(self) -> str:
        """Return those of all views and actions of a small game; all printable ones of others."""
        return _characters_of(self.game) or _PRINTABLE


def _characters_of(game: pyspiel.Game) -> str:
    """Return the characters of all views and actions; none if the game is not small."""
    if draws_inside(game) or game.get_type().dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
        return ""
    characters: set[str] = set()
    states, num_visited = [game.new_initial_state()], 0
    while states:
        state = states.pop()
        num_visited += 1
        if num_visited > MOST_NODES:
            return ""
        if state.is_terminal():
            continue
        if not state.is_chance_node():
            view = view_of(state, state.current_player())
            for text in (*(message.content for message in view.messages), *view.legal.values()):
                characters.update(text)
        states += [state.child(move) for move in state.legal_actions()]
    return "".join(sorted(characters))


class OpenSpielMatch(Match):
    """A match, with OpenSpiel's state."""

    def __init__(self, game: pyspiel.Game, seed: int) -> None:
        self.state: pyspiel.State = game.new_initial_state()
        self._seats, self._seed, self._num_draws = seats_of(game), seed, 0
        self._resolve_chance()

    @property
    def acting(self) -> list[str]:
        """The seats whose turn it is."""
        if self.state.is_terminal():
            return []
        if self.state.is_simultaneous_node():
            return [seat for n, seat in enumerate(self._seats) if self.state.legal_actions(n)]
        return [self._seats[self.state.current_player()]]

    def view(self, seat: str) -> View:
        """Return the seat's observations and legal actions."""
        return view_of(self.state, self._seats.index(seat))

    def legal(self, seat: str) -> list[int]:
        """Return the seat's legal actions."""
        legal: list[int] = self.state.legal_actions(self._seats.index(seat))
        return legal

    def observe(self, seat: str) -> Floats:
        """Return the seat's information state, or its observation."""
        return tensor_of(self.state, self._seats.index(seat))

    def play(self, actions: Mapping[str, int]) -> None:
        """Apply the actions, then draw chance."""
        if self.state.is_simultaneous_node():
            # OpenSpiel wants an entry for seats that have no action, which it ignores
            self.state.apply_actions([actions.get(seat, 0) for seat in self._seats])
        else:
            (action,) = actions.values()
            self.state.apply_action(action)
        self._resolve_chance()

    @property
    def rewards(self) -> dict[str, float]:
        """The seats' returns."""
        return dict(zip(self._seats, map(float, self.state.returns()), strict=True))

    def _resolve_chance(self) -> None:
        """Draw the outcomes of chance events until a seat acts, or the match ends."""
        while self.state.is_chance_node():
            outcomes = self.state.chance_outcomes()
            number = _hash(self._seed, self._num_draws) * _UNIT
            index = bisect_right(thresholds(outcomes), number)
            self.state.apply_action(outcomes[index][0])
            self._num_draws += 1
