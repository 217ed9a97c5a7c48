"""Training of the base model: first on good players, then on mixed ones.

From the good ones it learns to quote and to compare; the mixed ones take its certainty away, so
that it decides a little better than chance and leaves something to be learned by play.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from ratchet.language_models.local.tokenizer import ChatTokenizer
from ratchet.models.llama import PlainLlama
from ratchet.models.llama_shape import LlamaShape
from ratchet.models.optimizers import ScheduledAdam
from ratchet.models.supervision import TokenSequence, batches_of_like_length, pad
from ratchet.scenarios.code_validation.tiny_model.corpus import Reply, write_corpus
from ratchet.scenarios.code_validation.tiny_model.players import Skill
from ratchet.scenarios.code_validation.tiny_model.vocabulary import END
from ratchet.seeding import numpy_generator, torch_generator
from ratchet.tracking.files import write_atomically

SEED = 0
GOOD = Skill(mark_errors=(0.01,), follows=0.97)
MIXED = Skill(mark_errors=(0.01, 0.07), follows=0.58)
GAMES = {"good": 9000, "mixed": 5000}
STEPS = {"good": 1400, "mixed": 700}
DECISIONS_KEPT = {"good": 0.4, "mixed": 1.0}
"""Share of the decisions that are learned from: the arguments are what takes long to learn."""
BATCH_SIZE = 16
LEARNING_RATE = 4e-3
STEPS_PER_CHECKPOINT = 100
_WARMUP = 50

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of finished steps, and of all steps."""


def ignore_progress(done: int, steps: int) -> None:
    """Show nothing."""


def base_shape(vocab_size: int) -> LlamaShape:
    """Return the figures of the base model."""
    return LlamaShape(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        max_position_embeddings=1024,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        tie_word_embeddings=True,
    )


class ResumableAdam(ScheduledAdam):
    """Stores weights and moments in a file, from which training continues bit for bit."""

    @property
    def done(self) -> int:
        """The number of finished steps."""
        return self._adam.steps

    def _tensors(self) -> dict[str, Tensor]:
        groups: dict[str, Sequence[Tensor]] = {
            "weight": self._parameters,
            "mean": self._adam.means,
            "square": self._adam.squares,
        }
        return {f"{name}.{i}": t for name, group in groups.items() for i, t in enumerate(group)}

    def save(self, path: Path) -> None:
        """Write a checkpoint atomically."""
        tensors = {name: tensor.detach() for name, tensor in self._tensors().items()}
        write_atomically(path, save(tensors, metadata={"steps": str(self.done)}))

    @torch.no_grad()
    def load(self, path: Path) -> None:
        """Continue from a checkpoint."""
        with safe_open(path, "pt") as checkpoint:
            for name, tensor in self._tensors().items():
                tensor.copy_(checkpoint.get_tensor(name))
            self._adam.steps = int(checkpoint.metadata()["steps"])


def pretrain(
    tokenizer: ChatTokenizer,
    shape: LlamaShape,
    checkpoint: Path | None = None,
    progress: Progress = ignore_progress,
) -> PlainLlama:
    """Train the base model; the same weights each time on machines of a kind.

    Parameters
    ----------
    checkpoint
        Written every :data:`STEPS_PER_CHECKPOINT` steps; training continues from it if it exists.
    progress
        Called after each step.
    """
    model = PlainLlama(shape)
    model.initialise(torch_generator(SEED, "base model", purpose="weights"))
    steps = sum(STEPS.values())
    optimization = ResumableAdam(model.parameters(), LEARNING_RATE, steps=steps, warmup=_WARMUP)
    if checkpoint is not None and checkpoint.exists():
        optimization.load(checkpoint)
    before = 0
    for stage, skill in (("good", GOOD), ("mixed", MIXED)):
        if (finished := optimization.done - before) < STEPS[stage]:
            batches = islice(_batches(tokenizer, stage, skill), finished, STEPS[stage])
            for ids, weights in batches:
                optimization.step(_loss(model, ids, weights))
                progress(optimization.done, steps)
                if checkpoint is not None and optimization.done % STEPS_PER_CHECKPOINT == 0:
                    optimization.save(checkpoint)
        before += STEPS[stage]
    return model


def _batches(tokenizer: ChatTokenizer, stage: str, skill: Skill) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield token ids and weights of a stage's batches, without end."""
    rng = numpy_generator(SEED, "base model", purpose=stage)
    replies = write_corpus(rng, GAMES[stage], skill)
    keeps_decision = rng.random(len(replies)) < DECISIONS_KEPT[stage]
    corpus = _encode(
        tokenizer,
        [
            r
            for r, keep in zip(replies, keeps_decision.tolist(), strict=True)
            if keep or not r.decides
        ],
    )
    for indices in batches_of_like_length(rng, [len(s.ids) for s in corpus], BATCH_SIZE):
        yield pad([corpus[index] for index in indices])


def _encode(tokenizer: ChatTokenizer, replies: Sequence[Reply]) -> list[TokenSequence]:
    """Mark the replies as what is to be learned, each weighing 1 / √length in all."""
    sequences = []
    for reply in replies:
        before = tokenizer.prompt_ids(reply.prompt)
        after = tokenizer.encode(reply.text + END)
        weight = len(after) ** -0.5
        weights = (0.0,) * len(before) + (weight,) * len(after)
        sequences.append(TokenSequence((*before, *after), weights))
    return sequences


def _loss(model: PlainLlama, ids: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean of the cross-entropy of the next token."""
    target_weights = weights[:, 1:]
    chosen = target_weights > 0
    logits = model.logits(model(ids[:, :-1])[chosen])
    losses = F.cross_entropy(logits, ids[:, 1:][chosen], reduction="none")
    return torch.dot(losses, target_weights[chosen]) / target_weights.sum()
