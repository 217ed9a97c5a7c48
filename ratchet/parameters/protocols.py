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

    Only text scenarios read ``verifier_decision_scale``, the words for a verifier's decision and
    confidence, and ``invalid_response_penalty``, which is added to an agent's reward in a round
    without a valid reply from it.
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
    """Two provers, each with its own channel."""

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
    """Zero knowledge: coefficients of the simulator's rewards."""

    simulator_reward_coefficient: float = 1.0
    aux_prover_reward_coefficient: float = 1.0
