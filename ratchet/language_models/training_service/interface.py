"""Interface of training services: gradients, optimizer steps, samples, weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Protocol

from ratchet.errors import DataError, ParameterError
from ratchet.language_models.engines.rollouts import Completion, SampleRequest

RUN_METADATA = "ratchet_run"
"""Tag of a ``tinker`` client whose saved models are referenced by a run."""
KEPT_ANSWERS = 256
"""Number of a session's last responses that are stored for repeated requests."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The model that a session trains, and how it is identified.

    Parameters
    ----------
    model
        A base model, or one that was saved at the service.
    lora_rank, lora_alpha
        Size of the trained adapter; rank 0 trains all weights.
    intent
        An identifier of the session, such as a run's key: equal intents open the same session. A
        ``tinker`` service has none.
    resume
        The model was saved with its optimizer; continue from there.
    """

    model: str
    lora_rank: int = 0
    lora_alpha: int | None = None
    seed: int = 0
    intent: str | None = None
    resume: bool = False


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """A token sequence with its training targets.

    Parameters
    ----------
    tokens
        Prompt and completion.
    loss_mask
        1 for each token to train on, else 0; 0 for the first.
    weights
        Factor of each token's loss; None for 1. A loss is a sum: weights express means over tokens
        or completions.
    advantages
        Per token; required by every loss but ``cross_entropy``.
    log_probs
        The sampler's, per token; if None, ratios are 1 except for their gradient.
    """

    tokens: tuple[int, ...]
    loss_mask: tuple[int, ...]
    weights: tuple[float, ...] | None = None
    advantages: tuple[float, ...] | None = None
    log_probs: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if any(flag not in (0, 1) for flag in self.loss_mask) or self.loss_mask[:1] == (1,):
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
        Of this step; they may differ between steps.
    max_grad_norm
        Maximal norm of the gradient of all weights together; 0 for no clipping.
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
    """The result of a pass over examples.

    Parameters
    ----------
    log_probs
        Of each example's tokens under the current weights; 0.0 where its mask is 0.
    """

    metrics: Mapping[str, float]
    log_probs: tuple[tuple[float, ...], ...]


class TrainingService(Protocol):
    """A session with a service that trains a model.

    ``sequence`` numbers the operations that change state: 0, 1, 2, … For a completed number, the
    stored response is returned; with different content, or after a gap, the request is refused.
    """

    @property
    def session_id(self) -> str:
        """The session's id at the service."""
        ...

    def next_sequence(self) -> int:
        """Return the next sequence number that the session expects."""
        ...

    def forward_backward(
        self,
        examples: Sequence[TrainingExample],
        *,
        loss: str,
        loss_config: Mapping[str, float],
        sequence: int,
    ) -> ForwardBackward:
        """Add the gradient of a loss, summed over the examples' tokens, to the accumulated one."""
        ...

    def forward(self, examples: Sequence[TrainingExample], *, sequence: int) -> ForwardBackward:
        """Return log-probabilities without accumulating a gradient."""
        ...

    def optim_step(self, optimizer: OptimizerSettings, *, sequence: int) -> dict[str, float]:
        """Apply the accumulated gradient once and reset it; return metrics."""
        ...

    def sample(
        self, requests: Sequence[SampleRequest], *, model: str | None = None
    ) -> list[Completion]:
        """Sample with the current weights, or with those of a saved model."""
        ...

    def save_weights(self, *, sequence: int, name: str, optimizer: bool = False) -> str:
        """Save the current weights; return the new model's id.

        With ``optimizer``, another session can resume from it exactly.
        """
        ...

    def close(self) -> None:
        """Close the connections; the session remains."""
        ...
