"""OpenSpiel's games by name, ``open_spiel/kuhn_poker``, simulated one episode at a time.

An agent observes its information state, or an observation where a game has no tensors of those. An
episode's seed decides each of its chance events, which are numbered: see :func:`draw`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyspiel
import torch
from torch import Tensor

from ratchet.errors import ParameterError, UnknownNameError, nearest
from ratchet.scenarios.gymnasium.catalogue import OPEN_SPIEL
from ratchet.scenarios.gymnasium.simulators import SimulatedStep, Simulator
from ratchet.scenarios.gymnasium.spaces import AgentSpace, AgentSpaces, DiscreteActions
from ratchet.scenarios.gymnasium.turns import Turn

if TYPE_CHECKING:
    import numpy.typing as npt

    from ratchet.scenarios.gymnasium.simulators import Floats

_KWARGS = "gymnasium.environment_kwargs"
_SEED = "rng_seed"
"""The parameter of games that draw random numbers themselves."""
_MIXING = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))
"""Shifts and factors of SplitMix64 (Steele et al. 2014)."""


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
            f"{_KWARGS}: {dataset} has no parameter {unknown[0]!r}.{nearest(unknown[0], expected)}"
        )
    try:
        game = pyspiel.load_game(name, dict(parameters))
    except pyspiel.SpielError as error:
        raise ParameterError(f"{_KWARGS}: {dataset} got {dict(parameters)}: {error}") from error
    kind = game.get_type()
    if kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
        raise ParameterError(f"dataset: {dataset!r} is a mean-field game, expected one of players.")
    if not (kind.provides_information_state_tensor or kind.provides_observation_tensor):
        raise ParameterError(
            f"dataset: {dataset!r} has neither tensors of information states nor of observations,"
            " expected a game with one of them."
        )
    return game


def draws_inside(game: pyspiel.Game) -> bool:
    """Return whether a game draws random numbers itself, from a seed of its own."""
    return bool(game.get_type().chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC)


def is_zero_sum_for_two(game: pyspiel.Game) -> bool:
    """Return whether a game has two players, whose rewards always have the sum zero."""
    is_zero_sum = game.get_type().utility == pyspiel.GameType.Utility.ZERO_SUM
    return bool(is_zero_sum and game.num_players() == 2)


def game_spaces(game: pyspiel.Game) -> AgentSpaces:
    """Return the players' spaces: ``player_0``, ``player_1`` …."""
    if game.get_type().provides_information_state_tensor:
        size = game.information_state_tensor_size()
    else:
        size = game.observation_tensor_size()
    space = AgentSpace(size, DiscreteActions((game.num_distinct_actions(),)))
    return AgentSpaces({f"player_{player}": space for player in range(game.num_players())})


def observe(game: pyspiel.Game, state: pyspiel.State) -> Floats:
    """Return what the players see, f32 [A, D]; zeros at the end of the game."""
    if state.is_terminal():
        spaces = game_spaces(game)
        return np.zeros((len(spaces.names), spaces.observation_width), np.float32)
    if game.get_type().provides_information_state_tensor:
        tensors = map(state.information_state_tensor, range(game.num_players()))
    else:
        tensors = map(state.observation_tensor, range(game.num_players()))
    return np.array(list(tensors), np.float32)


def draw(seed: Tensor, number: Tensor) -> Tensor:
    """Return the numbers f64 [E] in [0, 1) of episodes' chance events, given both int64 [E].

    By a hash, so that any event of any number of episodes is drawn in one operation.
    """
    mixed = (seed * 2**20 + number + 1) * -0x61C8864680B583EB
    for shift, factor in _MIXING:
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    mixed = mixed ^ _shifted(mixed, 31)
    return _shifted(mixed, 11).double() * 2.0**-53


def _shifted(numbers: Tensor, bits: int) -> Tensor:
    """Shift to the right, filling up with zeros."""
    shifted: Tensor = (numbers >> bits) & (2 ** (64 - bits) - 1)
    return shifted


def thresholds(outcomes: Sequence[tuple[int, float]]) -> npt.NDArray[np.float64]:
    """Return where the outcomes after the first one begin in [0, 1)."""
    return np.cumsum([probability for _, probability in outcomes])[:-1]


class OpenSpielSimulator(Simulator):
    """An OpenSpiel game; ``max_episode_steps`` is a time limit in addition to the game's end."""

    def __init__(
        self, dataset: str, parameters: Mapping[str, Any], max_episode_steps: int | None = None
    ) -> None:
        self.dataset = dataset
        self.parameters = dict(parameters)
        self.game = load_game(dataset, parameters)
        self.spaces = game_spaces(self.game)
        self.max_episode_steps = max_episode_steps
        if not draws_inside(self.game):
            return
        if _SEED in parameters:
            raise ParameterError(
                f"{_KWARGS}.{_SEED}: got {parameters[_SEED]!r}, but each episode's seed sets it."
                " Leave it out."
            )
        if _SEED not in self.game.get_type().parameter_specification:
            raise ParameterError(
                f"dataset: {dataset!r} draws random numbers that no seed decides, so that a resumed"
                " run would differ; expected another game."
            )

    def reset(self, seed: int) -> Floats:
        """Start an episode."""
        if draws_inside(self.game):
            self.game = load_game(self.dataset, {**self.parameters, _SEED: seed})
        self._seed, self._num_draws, self._num_steps = seed, 0, 0
        self.state = self.game.new_initial_state()
        self._resolve_chance()
        return observe(self.game, self.state)

    def step(self, actions: npt.NDArray[Any]) -> SimulatedStep:
        """Move the player whose turn it is, or all."""
        before = np.array(self.state.returns())
        if self.state.is_simultaneous_node():
            self.state.apply_actions([int(action) for action in actions[:, 0]])
        else:
            self.state.apply_action(int(actions[self.state.current_player(), 0]))
        self._resolve_chance()
        self._num_steps += 1
        over = self.state.is_terminal()
        late = self.max_episode_steps is not None and self._num_steps >= self.max_episode_steps
        num_players = len(self.spaces.names)
        return SimulatedStep(
            observe(self.game, self.state),
            (np.array(self.state.returns()) - before).astype(np.float32),
            np.full(num_players, over),
            np.full(num_players, late and not over),
        )

    def turn(self) -> Turn:
        """Return the players that move, and their legal actions."""
        players = range(len(self.spaces.names))
        legal = torch.zeros(len(players), self.game.num_distinct_actions(), dtype=torch.bool)
        if not self.state.is_terminal():
            for player in players:
                legal[player, self.state.legal_actions(player)] = True
        return Turn(legal.any(-1), legal)

    def close(self) -> None:
        """Do nothing."""

    def _resolve_chance(self) -> None:
        """Draw the outcomes of chance events until a player moves, or the game ends."""
        while self.state.is_chance_node():
            outcomes = self.state.chance_outcomes()
            number = draw(torch.tensor([self._seed]), torch.tensor([self._num_draws])).item()
            index = int((number >= thresholds(outcomes)).sum())
            self.state.apply_action(outcomes[index][0])
            self._num_draws += 1
