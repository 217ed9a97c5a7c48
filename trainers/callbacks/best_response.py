"""The exact result against the best messages of another agent, added to tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.errors import ParameterError
from ratchet.statistics.results import accuracy
from trainers.callbacks.base import Callback, Moment
from trainers.callbacks.registry import register_callback
from trainers.results import Metrics
from trainers.tensordict.best_response import (
    agents_heard,
    check_best_response,
    find_best_response,
    num_turns,
)
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
    """Adds the deciding agent's accuracy against the best messages that it can receive to tests.

    ``best_response.accuracy`` is that against the messages of highest reward for their sender,
    ``any_messages.accuracy`` against those with the fewest correct decisions: no prover, however
    trained, causes a lower one on these datapoints with greedy actions. Without a sender both
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
        """Refuse trainers other than of networks by interaction, and messages of several agents."""
        if not trainer.traits.samples_rollouts:
            raise ParameterError(
                f"{spec.prefix}, but the trainer {hyper_params.trainer_name!r} samples no rollouts"
                " of networks. Leave it out, or choose a trainer such as vanilla_ppo."
            )
        protocol = hyper_params.interaction_protocol
        if not handler.verifier_names:
            raise ParameterError(
                f"{spec.prefix}, but in the protocol {protocol!r} no agent decides. Leave it out."
            )
        senders = agents_heard(handler)
        if len(senders) > 1:
            raise ParameterError(
                f"{spec.prefix}, but in the protocol {protocol!r} {senders} send messages to"
                f" {handler.verifier_names[0]!r}, expected at most one: the messages of several"
                " are too many to try. Leave it out."
            )
        turns = [num_turns(handler, name) for name in senders]
        if turns not in ([], [1]):
            raise ParameterError(
                f"{spec.prefix}, but with the protocol {protocol!r} {senders[0]!r} sends {turns[0]}"
                " messages in an episode, expected one. Leave it out, or choose fewer rounds."
            )

    def __init__(self, parameters: SubParameters, trainer: TensorDictRlTrainer) -> None:
        super().__init__(parameters, trainer)
        for agent in agents_heard(trainer.protocol_handler):
            check_best_response(trainer, trainer.test_environment, agent)

    def end_stage(self, now: Moment) -> Metrics:
        """Try all messages on the test's dataset; add nothing to tests with sampled actions."""
        if not acts_deterministically():
            return {}
        senders = agents_heard(self.trainer.protocol_handler)
        if not senders:
            test_accuracy = now.metrics["accuracy"]
            return {BEST_RESPONSE: test_accuracy, ANY_MESSAGES: test_accuracy}
        best_response = find_best_response(self.trainer, senders[0], now.dataset)
        return {
            BEST_RESPONSE: accuracy(best_response.table).value,
            ANY_MESSAGES: accuracy(best_response.worst).value,
        }
