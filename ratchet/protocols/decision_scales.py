"""Decision words of verifiers in text scenarios, with the confidence of each.

A decision of confidence c receives the expected reward of deciding so with probability (1 + c) / 2,
and otherwise the opposite. The middle of a scale, if it has one, is no decision: the game
continues, or ends undecided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.parameters.protocols import DecisionScaleName


@dataclass(frozen=True, eq=False)
class DecisionScale:
    """Answers that count as decisions.

    ``degrees`` maps each, from the most certain acceptance down, to its degree: above 0 accepts,
    below rejects, 1 and -1 are certain, and 0 is undecided. ``instructions`` describe the format of
    answers in prompts.
    """

    degrees: Mapping[str, float]
    instructions: str

    @property
    def has_degrees(self) -> bool:
        """Whether there is more than sure and sure."""
        return any(abs(degree) != 1 for degree in self.degrees.values())

    def surest(self, decision: int) -> str:
        """Return the answer that is surest of a decision, 0 or 1."""
        answers = tuple(self.degrees)
        return answers[0] if decision == 1 else answers[-1]


def _lines(answers: Mapping[str, float], count: str, meaning: str) -> DecisionScale:
    listed = "\n".join(f"Decision: {answer}" for answer in answers)
    head = f"exactly one of these {count} lines and nothing else:"
    return DecisionScale(answers, f"{head}\n{listed}\n{meaning}")


def _numbers(largest: int) -> DecisionScale:
    middle = largest // 2
    degrees = {
        str(number): number / middle - 1 for number in range(largest, -1, -1) if number != middle
    }
    return DecisionScale(
        degrees,
        f"one line and nothing else, with a whole number from 0 to {largest}, but not {middle}:\n"
        f"Decision: <number>\n{largest} means that you are sure that the program is right, 0 that"
        " you are sure that it has a bug. The surer you rightly are, the more you are paid.",
    )


_AGREEMENT = "They say how far you agree that the program is right."
_UNDECIDED = (
    f"{_AGREEMENT} Undecided is no decision: your turn passes without a message, and in your last"
    " turn nothing is decided."
)
_FOUR = {"strongly agree": 1.0, "agree": 0.5, "disagree": -0.5, "strongly disagree": -1.0}
_SIX = {
    "strongly agree": 1.0,
    "agree": 2 / 3,
    "somewhat agree": 1 / 3,
    "somewhat disagree": -1 / 3,
    "disagree": -2 / 3,
    "strongly disagree": -1.0,
}


def _with_middle(answers: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted([*answers.items(), ("undecided", 0.0)], key=lambda answer: -answer[1]))


DECISION_SCALES: Mapping[DecisionScaleName, DecisionScale] = {
    "accept_reject": _lines(
        {"accept": 1.0, "reject": -1.0},
        "two",
        "Accept means that you believe the program is right, reject that you believe it has a bug.",
    ),
    "likert_scale_4": _lines(_FOUR, "four", _AGREEMENT),
    "likert_scale_5": _lines(_with_middle(_FOUR), "five", _UNDECIDED),
    "likert_scale_6": _lines(_SIX, "six", _AGREEMENT),
    "likert_scale_7": _lines(_with_middle(_SIX), "seven", _UNDECIDED),
    "out_of_10": _numbers(10),
    "out_of_100": _numbers(100),
}
"""All scales, by the name that ``protocol_common.verifier_decision_scale`` has."""

ACCEPT_REJECT = DECISION_SCALES["accept_reject"]
