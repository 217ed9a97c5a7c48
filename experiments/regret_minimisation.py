"""Exact regret minimisation in a small game: a reference for agents that learn by play."""

from __future__ import annotations

import pyspiel

from ratchet.games.open_spiel import load_game
from trainers import TensorDictTrainer, register_trainer


@register_trainer("regret_minimisation")
class RegretMinimisationTrainer(TensorDictTrainer):
    """Counterfactual regret minimisation (Zinkevich et al. 2007) by OpenSpiel, without networks.

    Each of ``rl.num_iterations`` walks through the whole game. Deterministic: seeds do not matter.
    """

    def train(self) -> None:
        """Run all iterations, and measure the average policy and the last one as tests do."""
        hyper_params = self.hyper_params
        game = load_game(hyper_params.dataset, dict(hyper_params.gymnasium.environment_kwargs))
        solver = pyspiel.CFRSolver(game)
        for _ in range(hyper_params.rl.num_iterations):
            solver.evaluate_and_update_policy()
        no_limit = -1
        values = pyspiel.expected_returns(
            game.new_initial_state(), solver.average_policy(), no_limit, True
        )
        metrics = {
            "test_nash_conv.average": pyspiel.nash_conv(game, solver.average_policy()),
            "test_nash_conv.last": pyspiel.nash_conv(game, solver.current_policy()),
            "test_nash_conv.value": values[0],
        }
        self.log_stats(metrics, iteration=hyper_params.rl.num_iterations, stage="test")
