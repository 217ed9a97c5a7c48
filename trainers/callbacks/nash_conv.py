"""NashConv of the trained policies in small zero-sum games of two players."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import NonNegativeInt, PositiveInt

from ratchet.errors import ParameterError
from ratchet.games import OPEN_SPIEL
from ratchet.lazy import require_packages
from ratchet.parameters.base import SubParameters
from trainers.callbacks.base import Callback, CallbackState, Moment
from trainers.callbacks.registry import register_callback
from trainers.results import Metrics

if TYPE_CHECKING:
    import pyspiel
    from torch import Tensor

    from ratchet.games.information_states import InformationStates
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.base import ProtocolHandler
    from trainers.base import Trainer
    from trainers.callbacks.base import CallbackSpec

_WEIGHTS = "weights"


class NashConvParameters(SubParameters):
    """Intervals at which the policy is added to the average, and both are measured.

    - ``start``: finished iterations before the first snapshot that is averaged.
    - ``period``: iterations between the snapshots that are averaged.
    - ``measure_every``: iterations between measurements in training; null: only in tests.
    """

    start: NonNegativeInt = 0
    period: PositiveInt = 1
    measure_every: PositiveInt | None = None


@register_callback("nash_conv")
class NashConvTest(Callback):
    """Measures how much both players together would gain by best responses; exact, 0 at best.

    ``nash_conv.last`` is that of the current policy. ``nash_conv.average`` is that of the average
    of its snapshots by realisation weights, which is to play all episode by one of the snapshots;
    self-play converges on average at best. ``nash_conv.value`` is the first player's expected
    reward under the average policy. For OpenSpiel's sequential games of two players with sum zero
    and at most 20,000 nodes.
    """

    Parameters = NashConvParameters
    stages = ("test",)
    spans_phases = True
    plays_text = False
    parameters: NashConvParameters
    trainer: Any
    """A trainer of networks, or of language models."""

    _weights: Tensor | None = None
    """Sums of the snapshots' realisation weights, f64 [I, N]."""

    @classmethod
    def check(
        cls,
        spec: CallbackSpec,
        hyper_params: HyperParameters,
        trainer: type[Trainer],
        handler: ProtocolHandler,
    ) -> None:
        """Refuse other games, trainers without policies, and policies with a memory."""
        name = hyper_params.dataset
        if not name.startswith(OPEN_SPIEL):
            raise ParameterError(
                f"{spec.prefix}, but the dataset is {name!r}, expected a game of OpenSpiel such as"
                " 'open_spiel/kuhn_poker'. Leave it out."
            )
        traits = trainer.traits
        if not (traits.samples_rollouts or traits.learns_tokens) or traits.is_remote:
            raise ParameterError(
                f"{spec.prefix}, but the trainer {hyper_params.trainer_name!r} has no policies that"
                " can be read here. Leave it out, or choose a trainer such as vanilla_ppo or grpo."
            )
        for agent in handler.agent_names:
            if getattr(hyper_params.agents[agent], "recurrence", None) is not None:
                raise ParameterError(
                    f"{spec.prefix}, but agents.{agent} is recurrent, expected policies that depend"
                    " on the information state only. Set recurrence: null."
                )
        require_packages(["pyspiel"], spec.prefix)
        from ratchet.games.open_spiel import is_zero_sum_for_two, load_game
        from ratchet.scenarios.gymnasium.game_tables import build_table

        kwargs = _game_parameters(hyper_params)
        if not is_zero_sum_for_two(load_game(name, kwargs)) or build_table(name, kwargs) is None:
            raise ParameterError(
                f"{spec.prefix}, but {name!r} is not a small sequential game of two players with"
                " sum zero. Leave it out."
            )

    @cached_property
    def _game(self) -> pyspiel.Game:
        from ratchet.games.open_spiel import load_game

        hyper_params = self.trainer.hyper_params
        return load_game(hyper_params.dataset, _game_parameters(hyper_params))

    @cached_property
    def _states(self) -> InformationStates:
        from ratchet.games.information_states import information_states

        return information_states(self._game)

    def end_iteration(self, now: Moment) -> Metrics | None:
        """Add a snapshot to the average, and measure both policies, if they are due."""
        from ratchet.games.information_states import realisation_weights

        finished, parameters = now.iteration + 1, self.parameters
        if finished > parameters.start and finished % parameters.period == 0:
            weights = realisation_weights(self._states, self._policy())
            self._weights = weights if self._weights is None else self._weights + weights
        if parameters.measure_every is None or finished % parameters.measure_every:
            return None
        return self._measure()

    def end_stage(self, now: Moment) -> Metrics:
        """Measure both policies."""
        return self._measure()

    def take_state(self) -> CallbackState:
        """Return the summed weights."""
        return CallbackState(tensors={} if self._weights is None else {_WEIGHTS: self._weights})

    def load_state(self, state: CallbackState) -> None:
        """Restore the summed weights."""
        self._weights = state.tensors.get(_WEIGHTS)

    def _measure(self) -> Metrics:
        from ratchet.games.information_states import expected_returns, nash_conv, policy_from

        game, states = self._game, self._states
        metrics = {"nash_conv.last": nash_conv(game, states, self._policy())}
        if self._weights is not None:
            average = policy_from(states, self._weights)
            metrics["nash_conv.average"] = nash_conv(game, states, average)
            metrics["nash_conv.value"] = expected_returns(game, states, average)[0]
        return metrics

    def _policy(self) -> Tensor:
        """Return the agents' probabilities of actions in all information states, f64 [I, N]."""
        from trainers.callbacks import game_policies

        if self.trainer.traits.learns_tokens:
            return game_policies.language_policy(self.trainer, self._game, self._states)
        return game_policies.network_policy(self.trainer, self._states)


def _game_parameters(hyper_params: HyperParameters) -> Mapping[str, Any]:
    if hyper_params.scenario == "gymnasium":
        return dict(hyper_params.gymnasium.environment_kwargs)
    return dict(hyper_params.language_task.task_options)
