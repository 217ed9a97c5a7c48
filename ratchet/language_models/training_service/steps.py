"""Optimizer steps as a value with a digest, sent to a session operation by operation."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Protocol, TypeVar

from ratchet.errors import ParameterError
from ratchet.language_models.training_service.interface import (
    KEPT_ANSWERS,
    ForwardBackward,
    OptimizerSettings,
    TrainingExample,
    TrainingService,
)

T = TypeVar("T")
LogProbs = Sequence[tuple[float, ...]]
_TOKENS_AT_ONCE = 2**16


@dataclass(frozen=True)
class ServiceLoss:
    """A loss in the service's terms.

    ``of_sampler``: ratios refer to the examples' log-probabilities; otherwise to those of the
    weights before the update.
    """

    name: str
    config: Mapping[str, float]
    of_sampler: bool = False


class Weighing(Protocol):
    """Computes token weights that the examples do not contain."""

    @property
    def reads_scores(self) -> bool:
        """Whether it needs the log-probabilities of the weights before the update."""
        ...

    @property
    def content(self) -> Mapping[str, object]:
        """All inputs of its results, as JSON."""
        ...

    def __call__(
        self, examples: Sequence[TrainingExample], before: LogProbs | None
    ) -> list[tuple[float, ...]]:
        """Return the weights of a step's tokens."""
        ...


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A completed step.

    Parameters
    ----------
    examples
        The given examples.
    log_probs
        Theirs before the update if requested, otherwise before the step.
    grad_norm
        NaN if the service does not report it.
    """

    examples: Sequence[TrainingExample]
    passes: Sequence[ForwardBackward]
    log_probs: LogProbs
    grad_norm: float


@dataclass(frozen=True, slots=True)
class TrainingSteps:
    """Steps from one model to the next, each along the gradient of its examples' loss.

    Parameters
    ----------
    batches
        The example indices of each step; none is empty.
    optimizers
        Settings of each step.
    micro_batch_size
        Maximal number of examples per request.
    """

    examples: Sequence[TrainingExample]
    batches: Sequence[Sequence[int]]
    optimizers: Sequence[OptimizerSettings]
    loss: ServiceLoss
    micro_batch_size: int | None = None
    weighing: Weighing | None = None

    def __post_init__(self) -> None:
        sent = [self.examples] if self.asks_first else []
        sent += [_at(self.examples, rows) for rows in self.batches]
        verbs = 1 + len(self.batches) + sum(len(list(self._parts(one))) for one in sent)
        if verbs > KEPT_ANSWERS:
            raise ParameterError(
                f"training: got {len(self.batches)} steps in {verbs} requests, expected at most"
                f" {KEPT_ANSWERS}, whose responses the service stores. Use a larger"
                f" micro_batch_size than {self.micro_batch_size}, larger batches, or fewer epochs."
            )

    @property
    def asks_first(self) -> bool:
        """Whether the weights before the update must score all examples first."""
        several = len(self.batches) > 1 and not self.loss.of_sampler
        return several or (self.weighing is not None and self.weighing.reads_scores)

    @property
    def digest(self) -> str:
        """The SHA-256 of everything that is sent, 64 hexadecimal digits."""
        content = {
            "examples": [asdict(example) for example in self.examples],
            "batches": [list(rows) for rows in self.batches],
            "optimizers": [asdict(settings) for settings in self.optimizers],
            "loss": asdict(self.loss),
            "micro_batch_size": self.micro_batch_size,
            **({} if self.weighing is None else self.weighing.content),
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def take(self, session: TrainingService, name: str) -> tuple[str, list[CompletedStep]]:
        """Execute the steps in a separate session, and save the model with its optimizer.

        The session's operations are numbered from 0, so that interrupted steps resume where they
        stopped, and completed ones are not repeated.

        Returns
        -------
        tuple
            The model's id, and the completed steps.
        """
        numbers = count()
        before = self._score(session, numbers) if self.asks_first else None
        completed = []
        for rows, optimizer in zip(self.batches, self.optimizers, strict=True):
            examples = _at(self.examples, rows)
            known = None if before is None else _at(before, rows)
            passes = [
                session.forward_backward(
                    part,
                    loss=self.loss.name,
                    loss_config=self.loss.config,
                    sequence=next(numbers),
                )
                for part in self._parts(self._weighed(examples, known))
            ]
            if known is None:
                known = [values for one in passes for values in one.log_probs]
            done = session.optim_step(optimizer, sequence=next(numbers))
            completed.append(
                CompletedStep(examples, passes, known, done.get("grad_norm", math.nan))
            )
        return session.save_weights(sequence=next(numbers), name=name, optimizer=True), completed

    def _score(self, session: TrainingService, numbers: Iterator[int]) -> LogProbs:
        return [
            values
            for part in self._parts(self.examples)
            for values in session.forward(part, sequence=next(numbers)).log_probs
        ]

    def _weighed(
        self, examples: Sequence[TrainingExample], before: LogProbs | None
    ) -> Sequence[TrainingExample]:
        """Return a step's examples with token weights and reference log-probabilities."""
        prepared = examples
        if not self.loss.of_sampler:
            ratios_to = [None] * len(examples) if before is None else before
            prepared = [
                replace(one, log_probs=to) for one, to in zip(prepared, ratios_to, strict=True)
            ]
        if self.weighing is None:
            return prepared
        weights = self.weighing(examples, before)
        return [
            replace(one, weights=token_weights)
            for one, token_weights in zip(prepared, weights, strict=True)
        ]

    def _parts(self, examples: Sequence[TrainingExample]) -> Iterator[list[TrainingExample]]:
        """Split examples into requests."""
        part: list[TrainingExample] = []
        tokens, max_examples = 0, self.micro_batch_size or len(examples)
        for example in examples:
            size = len(example.tokens)
            if part and (len(part) >= max_examples or tokens + size > _TOKENS_AT_ONCE):
                yield part
                part, tokens = [], 0
            part.append(example)
            tokens += size
        yield part


def mean_figures(steps: Sequence[CompletedStep]) -> dict[str, float]:
    """Return means over tokens of all steps, and of losses over steps; counts are sums."""
    metrics = [one.metrics for step in steps for one in step.passes]
    tokens = sum(each["tokens"] for each in metrics)
    means = {
        name: sum(each[name] * each["tokens"] for each in metrics) / max(tokens, 1.0)
        for name in metrics[0]
        if name not in ("loss", "tokens")
    }
    return {
        **means,
        "loss": sum(each["loss"] for each in metrics) / len(steps),
        "grad_norm": sum(step.grad_norm for step in steps) / len(steps),
        "steps": float(len(steps)),
        "tokens": tokens,
    }


def _at(values: Sequence[T], indices: Sequence[int]) -> list[T]:
    return [values[index] for index in indices]
