"""Text trainers that learn from tokens, which they request while sampling."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainers.text.base import PureTextRlTrainer

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.scenarios.pure_text.agents.whole_agent import CallContext
    from ratchet.scenarios.pure_text.environment import PureTextEnvironment
    from ratchet.scenarios.pure_text.instance import TextScenarioInstance
    from trainers.text.sampling import Calls


class TokenSamplingTrainer(PureTextRlTrainer):
    """Base of text trainers that learn from tokens.

    In training, the tokens of learning agents' prompts and replies are requested with
    log-probabilities and stored in the rollouts.
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
        """Return the context of calls; in training it requests tokens."""
        context = super()._call_context(environment, iteration, calls)
        if not self._is_training(environment):
            return context
        agents = self.hyper_params.agents
        learning = (name for name in self.agent_names if not agents[name].freeze_agent)
        return replace(context, token_agents=frozenset(learning))
