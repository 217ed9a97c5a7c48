"""Expert iteration: each agent is fine-tuned, supervised, on its successful rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ratchet.algorithms import selection
from ratchet.rollouts.outcomes import episode_rewards, pass_rates_within
from ratchet.seeding import numpy_generator
from trainers.named import register_trainer
from trainers.text.base import PureTextRlTrainer

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.text_trainers import PureTextEiParameters
    from ratchet.rollouts.nested_array_dict import NestedArrayDict

STAGE = "create_fine_tune_jobs"


@register_trainer("pure_text_ei")
class PureTextEiTrainer(PureTextRlTrainer):
    """Selects rollouts by each agent's own episode reward, and trains on them.

    For a sampled share of a verifier's rollouts, its last message is replaced by the true label's
    decision, regardless of the reward.
    """

    @classmethod
    def examples_per_rollout(cls, hyper_params: HyperParameters, num_rounds: int) -> float:
        """Return the mean number of copies of a rollout in weighted sampling."""
        parameters = hyper_params.pure_text_ei
        is_weighted = parameters.rollout_selection_method == "weighted_sampling"
        return float(parameters.weighting_sample_size_factor) if is_weighted else 1.0

    def _stage_create_fine_tune_jobs(self, rollouts: NestedArrayDict) -> None:
        """Create a supervised job for each learning group."""
        parameters: PureTextEiParameters = self.hyper_params.pure_text_ei
        bounds = parameters.min_pass_rate, parameters.max_pass_rate
        verifier = self.agent_names.index(self.protocol_handler.verifier_names[0])
        rollouts = rollouts[np.flatnonzero(pass_rates_within(rollouts, verifier, *bounds))]
        for name, agents in self.learning_model_groups.items():
            chosen: dict[str, NestedArrayDict] = {}
            replaced: dict[str, NestedArrayDict] = {}
            for agent in agents:
                rest = rollouts
                if agent in self.protocol_handler.verifier_names:
                    replaced[agent], rest = self._sample_replaced(agent, rollouts)
                chosen[agent] = self._choose(agent, rest)
            self.shared_model_groups[name].create_supervised_fine_tune_job(chosen, replaced)

    def _sample_replaced(
        self, agent: str, rollouts: NestedArrayDict
    ) -> tuple[NestedArrayDict, NestedArrayDict]:
        """Sample the rollouts whose guesses are replaced; return them and the others."""
        text_rl = self.hyper_params.text_rl
        proportion = selection.guess_replacement_proportion(
            text_rl.verifier_guess_replacement_proportion,
            text_rl.verifier_guess_replacement_annealing,
            text_rl.verifier_guess_replacement_annealing_rate,
            self.state.iteration - self.first_iteration,
        )
        generator = self._generator("guess_replacement", agent)
        replaced, rest = selection.set_aside(len(rollouts), proportion, generator)
        return rollouts[replaced], rollouts[rest]

    def _choose(self, agent: str, rollouts: NestedArrayDict) -> NestedArrayDict:
        """Select rollouts by the agent's reward."""
        parameters: PureTextEiParameters = self.hyper_params.pure_text_ei
        rewards = episode_rewards(rollouts)[:, self.agent_names.index(agent)]
        if parameters.rollout_selection_method == "threshold":
            return rollouts[selection.threshold(rewards, parameters.reward_threshold)]
        ids = selection.weighted_sampling(
            rewards,
            self._generator("weighted_sampling", agent),
            size_factor=parameters.weighting_sample_size_factor,
            minimum=parameters.weighting_minimum,
            epsilon=parameters.weighting_epsilon,
            replace=parameters.weighting_use_replacement,
        )
        return rollouts[ids]

    def _generator(self, purpose: str, agent: str) -> np.random.Generator:
        return numpy_generator(self.hyper_params.seed, STAGE, self.state.iteration, purpose, agent)
