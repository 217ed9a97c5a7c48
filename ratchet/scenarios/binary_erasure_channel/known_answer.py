"""The game's known answers, in closed form.

Let e be the chance that the verifier's look is erased and q that the channel erases a lie (the
symbol 1 about a bit of 0). Bits are 0 and 1 equally often, and the prover is paid for acceptance.

- Alone the verifier guesses where its look is erased: 1 - e/2.
- With a prover it accepts where it saw a 1, or saw nothing and received a 1. No prover can do
  better against that than always to send 1; then only lies that arrive are believed:
  1 - e (1 - q)/2. It is the most that any verifier has against the prover's best reply (the
  equilibrium of the game in which the verifier leads), so training the prover again against this
  verifier changes nothing.
- Together, both paid for right decisions, the symbol is the bit: 1. A verifier that believes every
  symbol loses that when the prover turns against it.

After the binary-erasure-channel game of Anil et al. (2021), "Learning to give checkable answers
with prover-verifier games"; the verifier's own look is ours, so that "alone" is not just chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.scenarios.binary_erasure_channel.parameters import (
        BinaryErasureChannelParameters,
    )


def accuracy_alone(section: BinaryErasureChannelParameters) -> float:
    """Return the best accuracy of a verifier without a prover."""
    return 1 - section.observation_erasure_probability / 2


def accuracy_with_prover(section: BinaryErasureChannelParameters) -> float:
    """Return the best accuracy of a verifier against a prover that is paid for acceptance."""
    believed_lies = 1 - section.lie_erasure_probability
    return 1 - section.observation_erasure_probability * believed_lies / 2


def accuracy_together(section: BinaryErasureChannelParameters) -> float:
    """Return the best accuracy where the prover is paid for right decisions too."""
    return 1.0
