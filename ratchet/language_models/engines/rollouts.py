"""Engines that generate completions for training: their interface and their registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from ratchet.errors import DataError, ParameterError
from ratchet.language_models.engines.interface import FinishReason
from ratchet.registry import Registry

if TYPE_CHECKING:
    from ratchet.language_models.local.model import LanguageModel


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A prompt to complete.

    Parameters
    ----------
    prompt
        Token ids.
    max_tokens
        Maximal length of the completion; it also ends with the model's context.
    seed
        Seed of all randomness in the completion.
    temperature
        0: greedy.
    top_p
        Sample only from the most likely tokens with this total probability.
    stop_ids
        Tokens that end the completion, in addition to those that end a message of the model.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ParameterError("prompt: got no tokens, expected at least one.")
        if self.max_tokens < 1:
            raise ParameterError(f"max_tokens: got {self.max_tokens}, expected 1 or more.")
        if not 0 <= self.seed < 2**64:
            raise ParameterError(f"seed: got {self.seed}, expected 0 to 2**64 − 1.")
        if not self.temperature >= 0:
            raise ParameterError(f"temperature: got {self.temperature}, expected 0 or more.")
        if not 0 < self.top_p <= 1:
            raise ParameterError(f"top_p: got {self.top_p}, expected above 0, at most 1.")


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's completion.

    Parameters
    ----------
    tokens
        Token ids, including the end token.
    log_probs
        Of each token, at the request's temperature (at 1 if that is 0), before ``top_p``.
    finish_reason
        ``length`` if it was truncated.
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: FinishReason


class RolloutEngine(Protocol):
    """Generates with the trainer's weights."""

    def generate(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Generate completions, in request order.

        A completion depends on its request's seed, not on other requests (except for rounding); the
        same requests in the same order give the same bits.

        Raises DataError if a prompt fills the model's context.
        """
        ...

    def update(self, model: LanguageModel) -> None:
        """Use this model's current weights from the next call on."""
        ...


@runtime_checkable
class ClosableEngine(Protocol):
    """An engine with a process or memory of its own."""

    def close(self) -> None:
        """Release it; the next call of ``generate`` acquires it again."""
        ...


ENGINES: Registry[RolloutEngine] = Registry(
    "rollout_engine", home="ratchet.language_models.engines", parameter="language.engine"
)
"""Engine classes, constructed with a model and the options of ``language.engine``."""


def find_engine(name: str, base_dir: Path | None = None) -> type[RolloutEngine]:
    """Return the class of an engine: by name, or ``path/to/file.py:Class``."""
    return ENGINES.find(name, base_dir)


def make_engine(
    name: str, model: LanguageModel, given: Mapping[str, Any], base_dir: Path | None = None
) -> RolloutEngine:
    """Build an engine that generates with a model's weights."""
    found: Any = find_engine(name, base_dir)
    try:
        engine: RolloutEngine = found(model, **given)
    except TypeError as error:
        raise ParameterError(
            f"language.engine: {name} cannot be created with {dict(given)}: {error}."
        ) from error
    return engine


def check_prompts(requests: Sequence[SampleRequest], model: LanguageModel) -> None:
    """Check that prompts are of the model's tokens and leave room for a completion."""
    size, context = model.vocabulary_size, model.context_length
    for number, request in enumerate(requests):
        for token in (min(request.prompt), max(request.prompt)):
            if not 0 <= token < size:
                raise DataError(
                    f"requests[{number}]: got token {token} in the prompt, expected 0 to"
                    f" {size - 1}, the model's vocabulary. Encode text with its own tokenizer."
                )
        if len(request.prompt) >= context:
            raise DataError(
                f"prompt: got {len(request.prompt)} tokens; the model's context has {context} for"
                " prompt and completion. Shorten it, or train a model with a longer context"
                " (small_model.context_length)."
            )


def log_prob_differences(sampler: Sequence[float], trainer: Sequence[float]) -> dict[str, float]:
    """Compare the sampler's log-probabilities of the same tokens with the trainer's.

    Returns
    -------
    dict
        ``mean_abs`` and ``max_abs`` of the difference; ``kl``, an estimate of KL(sampler ‖ trainer)
        from the sampled tokens, r − 1 − log r with r the ratio of the probabilities (Schulman
        2020), which is never negative. All 0 for no tokens.
    """
    if len(sampler) != len(trainer):
        raise DataError(
            f"log-probabilities: got {len(sampler)} of the sampler and {len(trainer)} of the"
            " trainer, expected those of the same tokens."
        )
    if not len(sampler):
        return {"mean_abs": 0.0, "max_abs": 0.0, "kl": 0.0}
    log_ratio = np.asarray(trainer, np.float64) - np.asarray(sampler, np.float64)
    size = np.abs(log_ratio)
    kl = np.expm1(log_ratio) - log_ratio
    return {"mean_abs": float(size.mean()), "max_abs": float(size.max()), "kl": float(kl.mean())}
