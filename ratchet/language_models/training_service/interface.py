"""What a trainer asks of a service that holds the model: gradients, steps, samples, weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Protocol

from ratchet.errors import DataError, ParameterError
from ratchet.language_models.local.rollout_engine import Completion, SampleRequest

RUN_METADATA = "ratchet_run"
"""What a client of ``tinker`` says of itself where a run stores the names of what it saves."""
KEPT_ANSWERS = 256
"""So many of a session's last answers are kept for whoever asks again."""


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """A sequence of tokens, and what is known of those that are learned from.

    Parameters
    ----------
    tokens
        All that the model read and wrote.
    loss_mask
        1 for each token that is learned from, else 0; the first token is never.
    weights
        Factor of each token's term of the loss; None for 1. A loss is a sum: a mean over tokens
        or answers is made of weights.
    advantages
        For each token; every loss but ``cross_entropy`` needs them.
    log_probs
        What the sampler gave each token; where None, ratios are 1 but for their gradient.

    Raises
    ------
    DataError
        If they are not of one length, a mask is not 0 or 1, or a number is not finite.
    """

    tokens: tuple[int, ...]
    loss_mask: tuple[int, ...]
    weights: tuple[float, ...] | None = None
    advantages: tuple[float, ...] | None = None
    log_probs: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if any(place not in (0, 1) for place in self.loss_mask) or self.loss_mask[:1] == (1,):
            raise DataError("loss_mask: expected 0 or 1 for each token, and 0 for the first.")
        for field in fields(self)[1:]:
            values = getattr(self, field.name)
            if values is None:
                continue
            if len(values) != len(self.tokens):
                raise DataError(
                    f"{field.name}: got {len(values)} values for {len(self.tokens)} tokens,"
                    " expected one for each."
                )
            if not all(map(math.isfinite, values)):
                raise DataError(f"{field.name}: got a number that is not finite.")


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """One step of Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2).

    Parameters
    ----------
    learning_rate, beta1, beta2, eps, weight_decay
        Of this step; they may change from one to the next.
    max_grad_norm
        The norm to which the gradient of all weights together is cut; 0 for no cut.

    Raises
    ------
    ParameterError
        If one is out of its range.
    """

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            is_beta = name.startswith("beta")
            if not (0 <= value < (1 if is_beta else math.inf)):
                end = "below 1" if is_beta else "finite"
                raise ParameterError(f"{name}: got {value}, expected 0 or more, and {end}.")


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """What a pass over examples has given.

    Parameters
    ----------
    log_probs
        Of each example's tokens, under the weights as they are; 0.0 where its mask is 0.
    """

    metrics: Mapping[str, float]
    log_probs: tuple[tuple[float, ...], ...]


class TrainingService(Protocol):
    """A session with a service that trains a model.

    ``sequence`` numbers the verbs that change something: 0, 1, 2, … A number that was taken is
    answered again from what is stored; with other content, or behind a gap, it is refused.
    """

    @property
    def session_id(self) -> str:
        """The session's id at the service."""
        ...

    def next_sequence(self) -> int:
        """Return the number that the session expects next."""
        ...

    def forward_backward(
        self,
        examples: Sequence[TrainingExample],
        *,
        loss: str,
        loss_config: Mapping[str, float],
        sequence: int,
    ) -> ForwardBackward:
        """Add the gradient of a loss, summed over the examples' tokens, to what is gathered."""
        ...

    def forward(self, examples: Sequence[TrainingExample], *, sequence: int) -> ForwardBackward:
        """Return log-probabilities; no gradient is gathered."""
        ...

    def optim_step(self, optimizer: OptimizerSettings, *, sequence: int) -> dict[str, float]:
        """Follow the gathered gradient once, and forget it; return metrics."""
        ...

    def sample(
        self, requests: Sequence[SampleRequest], *, model: str | None = None
    ) -> list[Completion]:
        """Sample with the weights as they are, or with those of a model that was saved."""
        ...

    def save_weights(self, *, sequence: int, name: str, optimizer: bool = False) -> str:
        """Keep the weights as they are; return the id of the model that has them.

        With ``optimizer`` another session can go on from it as this one would.
        """
        ...

    def close(self) -> None:
        """Let go of connections; the session stays."""
        ...
