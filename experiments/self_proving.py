"""Tasks of self-proving models: a model proves each of its answers to a verifier.

After Amit, Goldwasser, Paradise and Rothblum, "Models That Prove Their Own Correctness" (2024,
arXiv:2405.15722). ``Gcd``: the greatest common divisor of two numbers, proved by Bézout
coefficients. ``SumCheck``: the sum of a polynomial over {0, 1}², proved by the interactive
sum-check protocol (Lund, Fortnow, Karloff and Nisan 1992). A number is one character, so one token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ratchet.language_models.types import ChatMessage
from ratchet.scenarios.language_task.environments.base import Episode, LanguageEnvironment, Turn
from ratchet.scenarios.language_task.sources.base import DrawnTasks, Sizes
from ratchet.scenarios.language_task.task import Evaluation, Task

BRAILLE = 0x2800
"""The first of 256 characters that stand for numbers."""
ZERO = 100
"""The position of 0 among them, so that numbers range from -100 to 155."""
LARGEST = 100
"""The largest number whose divisor is asked for."""
START, DECIDE = ":", "="
"""What ends a prompt, and what separates the steps of an annotation from the answer."""


def write(*numbers: int) -> str:
    """Return one character for each number."""
    return "".join(chr(BRAILLE + ZERO + number) for number in numbers)


def read(text: str) -> list[int]:
    """Return the numbers of characters; the inverse of :func:`write`."""
    return [ord(character) - BRAILLE - ZERO for character in text]


def bezout(x: int, y: int) -> tuple[list[tuple[int, int, int, int, int]], tuple[int, int, int]]:
    """Run the extended Euclidean algorithm.

    Returns
    -------
    tuple
        Its steps, each with the quotient q of the last two remainders, q times the last one, and
        the new remainder r with its s and t, r = s·x + t·y; and (g, u, v) with
        g = gcd(x, y) = u·x + v·y.
    """
    before, now = (x, 1, 0), (y, 0, 1)
    steps = []
    while now[0]:
        quotient = before[0] // now[0]
        r, s, t = (a - quotient * b for a, b in zip(before, now, strict=True))
        steps.append((quotient, quotient * now[0], r, s, t))
        before, now = now, (r, s, t)
    return steps, before


def accepts_divisor(x: int, y: int, g: int, u: int, v: int) -> bool:
    """Verify a divisor: only gcd(x, y) is accepted, with any proof.

    A common divisor divides the greatest one, which divides u·x + v·y.
    """
    return g >= 1 and x % g == 0 and y % g == 0 and u * x + v * y == g


def score_divisor(task: Task, completion: str, messages: Sequence[ChatMessage]) -> Evaluation:
    """Return 1 for an accepted proof; the metric ``correct`` is that of the answer without it."""
    x, y = (int(task.info[name]) for name in ("x", "y"))  # type: ignore[arg-type]
    numbers = read(completion.rpartition(DECIDE)[2])
    if len(numbers) != 3:
        return Evaluation(0.0, metrics={"proved": 0.0, "correct": 0.0})
    g, u, v = numbers
    proved = float(accepts_divisor(x, y, g, u, v))
    return Evaluation(proved, metrics={"proved": proved, "correct": float(g == math.gcd(x, y))})


class Gcd(DrawnTasks):
    """Pairs of numbers up to 100, written "xy:", to be answered by "guv" with u·x + v·y = g.

    ``task_options``: with ``annotated``, demonstrations contain the steps of the Euclidean
    algorithm before the answer. ``log_uniform`` samples the logarithms of training numbers evenly,
    so small numbers are more frequent than in tests.
    """

    def build(self, seed: int, sizes: Sizes) -> dict[str, list[Task]]:
        """Sample both sides; only training pairs may be log-uniform."""
        self._log_uniform = False
        sides = super().build(seed, sizes)
        if self.section.task_options.get("log_uniform"):
            self._log_uniform = True
            sides["train"] = super().build(seed, sizes)["train"]
        return sides

    def draw(self, rng: np.random.Generator) -> Task:
        """Sample two numbers."""
        if self._log_uniform:
            x, y = (int(n) for n in np.exp(rng.uniform(0, np.log(LARGEST + 1), 2)))
        else:
            x, y = (int(n) for n in rng.integers(1, LARGEST + 1, 2))
        prompt = write(x, y) + START
        return Task(f"gcd({x}, {y})", prompt, write(*bezout(x, y)[1]), {"x": x, "y": y})

    def demonstrate(self, task: Task) -> str:
        """Return the answer, after the steps if they are annotated."""
        if not self.section.task_options.get("annotated"):
            return task.answer
        steps, _ = bezout(int(task.info["x"]), int(task.info["y"]))  # type: ignore[arg-type]
        return "".join(write(*step) for step in steps[:-1]) + DECIDE + task.answer

    def characters(self) -> str:
        """Return all numbers and both marks."""
        return write(*range(-LARGEST, LARGEST + 1)) + START + DECIDE


MODULUS = 13
"""Polynomials of ``SumCheck`` are over the integers modulo this prime."""


def value_between(at_zero: int, at_one: int, point: int) -> int:
    """Return the value at a point of the line through two values at 0 and 1."""
    return (at_zero + point * (at_one - at_zero)) % MODULUS


class SumCheck(DrawnTasks):
    """Multilinear polynomials f(a, b), written "f(0,0) f(0,1) f(1,0) f(1,1)", with ``chat``.

    The answer is "s g(0) g(1)": the sum of f over {0, 1}² and the line g(a) = f(a, 0) + f(a, 1).
    Half of the training tasks start after the verifier's challenge, where "h(0) h(1)" is due, the
    line h(b) = f(challenge, b): demonstrations of the second reply. With ``annotated`` in
    ``task_options``, demonstrations contain steps of one operation before the answer: the line g,
    and the slopes of f with the challenge and their products with it.
    """

    def build(self, seed: int, sizes: Sizes) -> dict[str, list[Task]]:
        """Sample both sides; tests are complete proofs of polynomials unseen in training."""
        self._starts_at_challenge = False
        tests = super().build(seed, sizes)["test"]
        tested = {str(task.info["values"]) for task in tests}
        self._starts_at_challenge = True
        surplus = None if sizes.train is None else 2 * sizes.train
        drawn = super().build(seed, replace(sizes, train=surplus))["train"]
        unseen = [task for task in drawn if str(task.info["values"]) not in tested]
        return {"train": unseen[: sizes.train], "test": tests}

    def draw(self, rng: np.random.Generator) -> Task:
        """Sample a polynomial, and in training whether the task starts at the challenge."""
        values = [int(value) for value in rng.integers(MODULUS, size=4)]
        opening = Task(
            str(values),
            (ChatMessage("user", write(*values)),),
            write(*first_reply(values)),
            {"values": values, "challenge": None},
        )
        if not self._starts_at_challenge or rng.integers(2):
            return opening
        challenge = int(rng.integers(MODULUS))
        first = ChatMessage("assistant", self.demonstrate(opening))
        return Task(
            f"{values} at {challenge}",
            (*opening.messages, first, ChatMessage("user", write(challenge))),
            write(*second_reply(values, challenge)),
            {"values": values, "challenge": challenge},
        )

    def demonstrate(self, task: Task) -> str:
        """Return the answer, after the steps if they are annotated."""
        if not self.section.task_options.get("annotated"):
            return task.answer
        values: list[int] = task.info["values"]  # type: ignore[assignment]
        challenge = task.info["challenge"]
        steps: list[int] = list(first_reply(values)[1:])
        if isinstance(challenge, int):
            slopes = [(values[k + 2] - values[k]) % MODULUS for k in (0, 1)]
            steps = [n for s in slopes for n in (s, challenge, challenge * s % MODULUS)]
        return write(*steps) + DECIDE + task.answer

    def environment(self) -> LanguageEnvironment:
        """Return the verifier."""
        return SumCheckVerifier()

    def characters(self) -> str:
        """Return all numbers and the mark of the answer."""
        return write(*range(MODULUS)) + DECIDE


def first_reply(values: Sequence[int]) -> tuple[int, int, int]:
    """Return the sum and the line g of an honest prover."""
    at_zero, at_one = (values[0] + values[1]) % MODULUS, (values[2] + values[3]) % MODULUS
    return (at_zero + at_one) % MODULUS, at_zero, at_one


def second_reply(values: Sequence[int], challenge: int) -> tuple[int, int]:
    """Return the line h of an honest prover."""
    h_0, h_1 = (value_between(values[k], values[k + 2], challenge) for k in (0, 1))
    return h_0, h_1


class SumCheckVerifier(LanguageEnvironment):
    """The verifier of the sum-check protocol: two replies around a random challenge.

    It accepts a wrong sum with a probability of at most 2 / ``MODULUS``, for any prover.
    """

    scores_itself = True
    max_turns = 2

    def begin(self, task: Task, seed: int) -> Episode:
        """Sample both challenges."""
        return SumCheckEpisode(task, np.random.default_rng(seed))


class SumCheckEpisode(Episode):
    """One proof, complete or from the challenge on."""

    def __init__(self, task: Task, rng: np.random.Generator) -> None:
        self._task = task
        self._values: list[int] = task.info["values"]  # type: ignore[assignment]
        given = task.info["challenge"]
        self._challenge, self._last = (int(n) for n in rng.integers(MODULUS, size=2))
        self._first: list[int] | None = None
        if isinstance(given, int):
            self._challenge, self._first = given, list(first_reply(self._values))

    @property
    def opening(self) -> Sequence[ChatMessage]:
        """The polynomial, with the start of the proof if given."""
        return self._task.messages

    def answer(self, reply: str) -> Turn:
        """Check the first reply and send the challenge, or end with the second one."""
        numbers = read(reply.rpartition(DECIDE)[2])
        if self._first is not None or len(numbers) != 3 or not _adds_up(*numbers):
            return Turn(done=True)
        self._first = numbers
        return Turn((ChatMessage("user", write(self._challenge)),))

    def evaluate(self, completion: str, messages: Sequence[ChatMessage]) -> Evaluation:
        """Return 1 for an accepted proof; the metric ``correct`` is that of the sum without it."""
        second = read(completion.rpartition(DECIDE)[2])
        claimed = self._first if self._first is not None else second
        correct = float(claimed[:1] == [first_reply(self._values)[0]])
        is_proved = self._first is not None and accepts_line(
            self._values, self._first, second, self._challenge, self._last
        )
        proved = float(is_proved)
        return Evaluation(proved, metrics={"proved": proved, "correct": correct})


def accepts_line(
    values: Sequence[int], first: Sequence[int], second: Sequence[int], challenge: int, last: int
) -> bool:
    """Verify the second reply: h sums to g(challenge), and h(last) = f(challenge, last)."""
    if len(second) != 2:
        return False
    claimed = value_between(first[1], first[2], challenge)
    true = value_between(*second_reply(values, challenge), last)
    return sum(second) % MODULUS == claimed and value_between(*second, last) == true


def _adds_up(total: int, at_zero: int, at_one: int) -> bool:
    return (at_zero + at_one - total) % MODULUS == 0
