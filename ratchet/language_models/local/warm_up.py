"""Supervised warm-up before rollouts: a model learns completions of prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from ratchet.errors import DataError, ParameterError
from ratchet.language_models.local.model import LanguageModel
from ratchet.models.master_weights import MasterWeights
from ratchet.models.optimizers import ScheduledAdam
from ratchet.models.supervision import SupervisedLoss, TokenSequence, batches_of_like_length
from ratchet.seeding import numpy_generator

_RISE = 10  # steps of the learning rate's warm-up
_RECENT = 5  # steps whose mean loss is checked


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A prompt and the completion to learn: token ids, including the end token."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def warm_up(
    model: LanguageModel,
    demonstrations: Sequence[Demonstration],
    *,
    steps: int,
    learning_rate: float,
    batch_size: int,
    seed: int,
    until: float = 0.0,
    on_step: Callable[[float], None] | None = None,
) -> list[float]:
    """Train on the completions' cross-entropy; return the loss of each step.

    Uses Adam with the schedule of fine-tuning. Equal arguments give equal weights, bit for bit on a
    CPU.

    Parameters
    ----------
    steps
        Maximal number of steps.
    until
        Stop once the mean loss of the last few steps, in nats per token, is at most this: the time
        that a small model takes depends on the seed, its ability at that loss does not.
    on_step
        Called with the loss of each step, to show progress.
    """
    if not demonstrations:
        raise DataError("warm-up: got no demonstrations, expected at least one.")
    if min(steps, batch_size) < 1 or not learning_rate > 0:
        raise ParameterError(
            f"warm-up: got {steps} steps, batches of {batch_size} and a learning rate of"
            f" {learning_rate}, expected 1 or more, 1 or more, above 0."
        )
    longest = max(len(d.prompt) + len(d.answer) for d in demonstrations)
    if longest > model.context_length:
        raise DataError(
            f"warm-up: got a demonstration of {longest} tokens; the model's context has"
            f" {model.context_length}. Use a longer context or shorter prompts."
        )
    sequences = [
        TokenSequence((*d.prompt, *d.answer), (0.0,) * len(d.prompt) + (1.0,) * len(d.answer))
        for d in demonstrations
    ]
    loss = SupervisedLoss(model, sequences)
    weights = model.parameters()
    masters = MasterWeights(weights)
    optimization = ScheduledAdam(masters.weights, learning_rate, steps=steps, warmup=_RISE)
    rng = numpy_generator(seed, "warm-up", purpose="order")
    batches = batches_of_like_length(
        rng, [len(s.ids) for s in sequences], min(batch_size, len(sequences))
    )
    losses: list[float] = []
    for indices in islice(batches, steps):
        value = loss(indices)[0]
        gradients = torch.autograd.grad(value, weights, materialize_grads=True)
        optimization.follow([gradient.float() for gradient in gradients])
        masters.round()
        losses.append(float(value.detach()))
        if on_step is not None:
            on_step(losses[-1])
        if sum(losses[-_RECENT:]) <= until * _RECENT and len(losses) >= _RECENT:
            break
    return losses
