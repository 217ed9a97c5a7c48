"""Sections of interaction protocols."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import PositiveInt, model_validator

from ratchet.parameters.base import SubParameters, register_parameters
from ratchet.parameters.purposes import Purpose

DecisionScaleName = Literal[
    "accept_reject",
    "likert_scale_4",
    "likert_scale_5",
    "likert_scale_6",
    "likert_scale_7",
    "out_of_10",
    "out_of_100",
]


@register_parameters("protocol_common")
class ProtocolCommonParameters(SubParameters, read_for=Purpose.GAME):
    """Parameters of all protocols: the first agent, and rewards.

    Only text scenarios read ``verifier_decision_scale`` and ``invalid_response_penalty``.

    - ``verifier_first``: let the verifier act in the first round.
    - ``randomize_prover_stance``: reward a single chat-model prover for a decision sampled per
      episode.
    - ``prover_reward``: reward of a prover for the decision that it argues for.
    - ``verifier_reward``: reward of the verifier for a correct decision.
    - ``verifier_incorrect_penalty``: reward of the verifier for an incorrect decision.
    - ``verifier_terminated_penalty``: reward of the verifier if the last round ends without a
      decision.
    - ``verifier_no_guess_reward``: reward of the verifier for a turn without a decision.
    - ``shared_reward``: give provers the verifier's reward.
    - ``force_guess``: replace all decisions by 0, by 1 or by the true label.
    - ``zero_knowledge``: add an adversarial verifier and a simulator that imitates it without the
      prover.
    - ``verifier_decision_scale``: words for a chat-model verifier's decision and confidence.
    - ``invalid_response_penalty``: added to a chat model's reward in a round without a valid reply
      from it.
    """

    verifier_first: bool = True
    randomize_prover_stance: bool = False
    prover_reward: float = 1.0
    verifier_reward: float = 1.0
    verifier_incorrect_penalty: float = -1.0
    verifier_terminated_penalty: float = -1.0
    verifier_no_guess_reward: float = 0.0
    shared_reward: bool = False
    force_guess: Literal["zero", "one", "y"] | None = None
    zero_knowledge: bool = False
    verifier_decision_scale: DecisionScaleName = "accept_reject"
    invalid_response_penalty: float = 0.0


class LongProtocolParameters(SubParameters, read_for=Purpose.GAME):
    """Bounds on the number of rounds of a protocol with several rounds.

    Networks are built for ``max_message_rounds``. With ``played_message_rounds`` episodes end after
    fewer rounds, with the same networks.

    - ``min_message_rounds``: rounds before which the verifier cannot decide.
    """

    max_message_rounds: PositiveInt = 8
    min_message_rounds: PositiveInt = 1
    played_message_rounds: PositiveInt | None = None

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.min_message_rounds > self.max_message_rounds:
            raise ValueError(
                "expected min_message_rounds <= max_message_rounds, got"
                f" {self.min_message_rounds} > {self.max_message_rounds}"
            )
        played = self.played_message_rounds
        if played and not self.min_message_rounds <= played <= self.max_message_rounds:
            raise ValueError(
                "expected min_message_rounds <= played_message_rounds <= max_message_rounds, got"
                f" {played} with {self.min_message_rounds} and {self.max_message_rounds}"
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return all values; ``played_message_rounds`` only if it is set."""
        data = super().to_dict()
        if self.played_message_rounds is None:
            del data["played_message_rounds"]
        return data


@register_parameters("nip_protocol", protocols=("nip",))
class NipProtocolParameters(LongProtocolParameters):
    """A prover and a verifier take turns."""


class TwoProverProtocolParameters(LongProtocolParameters, read_for=Purpose.GAME):
    """Two provers, each with its own channel.

    - ``sequential``: let provers speak in separate rounds instead of the same one.
    - ``prover0_first``: let ``prover0`` speak before ``prover1`` if ``sequential``.
    - ``randomize_channel_order``: show the verifier the two channels in random order.
    """

    sequential: bool = False
    prover0_first: bool = True
    randomize_channel_order: bool = True


@register_parameters("debate_protocol", protocols=("debate",))
class DebateProtocolParameters(TwoProverProtocolParameters):
    """Two provers argue for opposite answers before a verifier; all see all."""


@register_parameters("mnip_protocol", protocols=("mnip",))
class MnipProtocolParameters(TwoProverProtocolParameters):
    """Two provers argue for the same answer without seeing each other."""


@register_parameters("multi_channel_test_protocol", protocols=("multi_channel_test",))
class MultiChannelTestProtocolParameters(LongProtocolParameters, read_for=Purpose.GAME):
    """Three provers and three channels, for tests of everything that has channels."""

    min_message_rounds: PositiveInt = 2


@register_parameters("zk_protocol")
class ZkProtocolParameters(SubParameters, read_for=Purpose.NETWORKS):
    """Zero knowledge: coefficients of the simulator's rewards.

    - ``simulator_reward_coefficient``: coefficient of the simulator's reward for imitating the
      adversary.
    - ``aux_prover_reward_coefficient``: share of the simulator's reward that provers get.
    """

    simulator_reward_coefficient: float = 1.0
    aux_prover_reward_coefficient: float = 1.0
