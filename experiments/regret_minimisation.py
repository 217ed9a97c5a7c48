"""Exact regret minimisation in a small game: a reference for agents that learn by play."""

from __future__ import annotations

import pyspiel

from ratchet.games.open_spiel import load_game
from trainers import TensorDictTrainer, register_trainer
from trainers.results import with_test_prefix

_MEASURE_EVERY = 25


@register_trainer("regret_minimisation")
class RegretMinimisationTrainer(TensorDictTrainer):
    """Counterfactual regret minimisation (Zinkevich et al. 2007) by OpenSpiel, without networks.

    Each of ``rl.num_iterations`` walks through the whole game. Deterministic: seeds do not matter.
    Metrics are those of the callback ``nash_conv``.
    """

    def train(self) -> None:
        """Run all iterations, and measure the average policy and the last one."""
        hyper_params = self.hyper_params
        game = load_game(hyper_params.dataset, dict(hyper_params.gymnasium.environment_kwargs))
        solver = pyspiel.CFRSolver(game)
        for iteration in range(hyper_params.rl.num_iterations):
            solver.evaluate_and_update_policy()
            if (iteration + 1) % _MEASURE_EVERY == 0:
                self.log_stats(_measured(game, solver), iteration=iteration, stage="train")
        metrics = with_test_prefix(_measured(game, solver))
        self.log_stats(metrics, iteration=hyper_params.rl.num_iterations, stage="test")


def _measured(game: pyspiel.Game, solver: pyspiel.CFRSolver) -> dict[str, float]:
    average, no_limit = solver.average_policy(), -1
    returns = pyspiel.expected_returns(game.new_initial_state(), average, no_limit, True)
    return {
        "nash_conv.average": pyspiel.nash_conv(game, average),
        "nash_conv.last": pyspiel.nash_conv(game, solver.current_policy()),
        "nash_conv.value": returns[0],
    }
