"""The exact result against the best messages of another agent, added to tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.errors import ParameterError
from ratchet.statistics.results import accuracy
from trainers.callbacks.base import Callback, Moment
from trainers.callbacks.registry import register_callback
from trainers.results import Metrics
from trainers.tensordict.best_response import check_best_response, find_best_response
from trainers.tensordict.collectors import acts_deterministically

if TYPE_CHECKING:
    from ratchet.parameters.base import SubParameters
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.base import ProtocolHandler
    from trainers.base import Trainer
    from trainers.callbacks.base import CallbackSpec
    from trainers.tensordict.rl import TensorDictRlTrainer

BEST_RESPONSE = "best_response.accuracy"
ANY_MESSAGES = "any_messages.accuracy"


@register_callback("best_response")
class BestResponseTest(Callback):
    """Adds the deciding agent's accuracy against the best messages of the other agent to tests.

    ``best_response.accuracy`` is that against the messages of highest reward for the other agent,
    ``any_messages.accuracy`` against those with the fewest correct decisions: no prover, however
    trained, causes a lower one on these datapoints with greedy actions. Without another agent both
    are the accuracy of the test. See :func:`trainers.tensordict.best_response.find_best_response`.
    """

    stages = ("test",)
    plays_text = False
    trainer: TensorDictRlTrainer

    @classmethod
    def check(
        cls,
        spec: CallbackSpec,
        hyper_params: HyperParameters,
        trainer: type[Trainer],
        handler: ProtocolHandler,
    ) -> None:
        """Refuse trainers other than of networks by interaction, and several other agents."""
        if not trainer.traits.samples_rollouts:
            raise ParameterError(
                f"{spec.given}, but the trainer {hyper_params.trainer_name!r} samples no rollouts"
                " of networks. Leave it out, or choose a trainer such as vanilla_ppo."
            )
        others, protocol = _others(handler), hyper_params.interaction_protocol
        if not handler.verifier_names or len(others) > 1:
            raise ParameterError(
                f"{spec.given}, but the protocol {protocol!r} has the agents {others} besides the"
                f" deciding {list(handler.verifier_names)}, expected agents that decide and at most"
                " one other: the messages of several are too many to try. Leave it out."
            )
        turns = [
            int(handler.can_be_active_mask[:, handler.agent_index(name)].sum()) for name in others
        ]
        if turns not in ([], [1]):
            raise ParameterError(
                f"{spec.given}, but with the protocol {protocol!r} {others[0]!r} sends {turns[0]}"
                " messages in an episode, expected one. Leave it out, or choose fewer rounds."
            )

    def __init__(self, parameters: SubParameters, trainer: TensorDictRlTrainer) -> None:
        super().__init__(parameters, trainer)
        for agent in _others(trainer.protocol_handler):
            check_best_response(trainer, trainer.test_environment, agent)

    def end_stage(self, now: Moment) -> Metrics:
        """Try all messages on the test's dataset; add nothing to tests with sampled actions."""
        others = _others(self.trainer.protocol_handler)
        if not acts_deterministically():
            return {}
        if not others:
            own = now.metrics["accuracy"]
            return {BEST_RESPONSE: own, ANY_MESSAGES: own}
        found = find_best_response(self.trainer, others[0], now.dataset)
        return {
            BEST_RESPONSE: accuracy(found.table).value,
            ANY_MESSAGES: accuracy(found.worst).value,
        }


def _others(handler: ProtocolHandler) -> list[str]:
    return [name for name in handler.agent_names if name not in handler.verifier_names]
