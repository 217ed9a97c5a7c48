"""Analytic solution of the erasure-channel game, in closed form.

Let e be the probability that the verifier's look is erased, and q the probability that the channel
erases a lie (the symbol 1 about a bit of 0). Bits are 0 and 1 equally often, and the prover is
rewarded for acceptance.

- Without a prover, the verifier guesses where its look is erased: 1 - e/2.
- With a prover, it accepts where it saw a 1, or saw nothing and received a 1. The prover's best
  reply is always to send 1; then only lies that arrive are accepted: 1 - e (1 - q)/2. No verifier
  achieves more against the prover's best reply (the equilibrium of the game in which the verifier
  leads), so training the prover again against this verifier changes nothing.
- If both are rewarded for correct decisions, the symbol is the bit: 1. A verifier that accepts
  every symbol loses this when the prover turns against it.

Based on the binary-erasure-channel game of Anil et al. (2021), "Learning to give checkable answers
with prover-verifier games"; the verifier's look is an addition, so that its accuracy without a
prover is above chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.scenarios.binary_erasure_channel.parameters import BinaryErasureChannelParameters


def accuracy_alone(section: BinaryErasureChannelParameters) -> float:
    """Return the best accuracy of a verifier without a prover."""
    return 1 - section.observation_erasure_probability / 2


def accuracy_with_prover(section: BinaryErasureChannelParameters) -> float:
    """Return the best accuracy of a verifier against a prover rewarded for acceptance."""
    believed_lies = 1 - section.lie_erasure_probability
    return 1 - section.observation_erasure_probability * believed_lies / 2


def accuracy_together(section: BinaryErasureChannelParameters) -> float:
    """Return the best accuracy if the prover is also rewarded for correct decisions."""
    return 1.0
