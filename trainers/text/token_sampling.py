"""Text trainers that learn from tokens: they ask for them as they sample."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainers.text.base import PureTextRlTrainer

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.scenarios.pure_text.agents.whole_agent import CallContext
    from ratchet.scenarios.pure_text.base import TextScenarioInstance
    from ratchet.scenarios.pure_text.environment import PureTextEnvironment
    from trainers.text.sampling import Calls


class TokenSamplingTrainer(PureTextRlTrainer):
    """Base of text trainers that learn from tokens.

    In training, what agents that learn read and write is asked for token by token, with
    log-probabilities, and is in the rollouts.
    """

    def __init__(
        self,
        hyper_params: HyperParameters,
        scenario_instance: TextScenarioInstance,
        settings: ExperimentSettings,
    ) -> None:
        super().__init__(hyper_params, scenario_instance, settings)
        self.train_environment.asks_for_tokens = True

    def _call_context(
        self, environment: PureTextEnvironment, iteration: int, calls: Calls
    ) -> CallContext:
        """Return what calls are made with: in training, that tokens are asked for."""
        context = super()._call_context(environment, iteration, calls)
        if not self._is_training(environment):
            return context
        agents = self.hyper_params.agents
        learning = (name for name in self.agent_names if not agents[name].freeze_agent)
        return replace(context, token_agents=frozenset(learning))
