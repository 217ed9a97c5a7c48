"""A causal language model that training changes: its log-probabilities, with gradients.

The trainers know models by this alone. Which code runs one: ``plain_model`` for small Llamas,
``hugging_face`` for all others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ratchet.errors import DataError
from ratchet.language_models.service.engine.model_folder import GenerationCache
from ratchet.language_models.service.engine.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True)
class TokenScores:
    """What a model says of tokens that were written, 0.0 where nothing was asked.

    Parameters
    ----------
    log_probs
        float[B, T].
    entropy
        float[B, T], of the distribution that the token was drawn from; None if not asked for.
    """

    log_probs: Tensor
    entropy: Tensor | None = None


class LanguageModel(ABC):
    """A causal language model with its tokenizer, and gradients for what training changes.

    Parameters
    ----------
    tokenizer
        Of the folder it came from.
    pad_token_id
        What the trainers fill rows up with; no mask is ever read from it.
    context_length
        Most tokens of prompt and answer together.
    vocabulary_size
        Number of tokens that it can read.
    device
        Where its weights are; ``score`` and ``hidden`` answer there.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        *,
        pad_token_id: int,
        context_length: int,
        vocabulary_size: int,
        device: torch.device,
    ) -> None:
        self.tokenizer = tokenizer
        self.pad_token_id = pad_token_id
        self.end_ids: tuple[int, ...] = tokenizer.end_ids
        self.context_length = context_length
        self.vocabulary_size = vocabulary_size
        self.device = device

    def score(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        chosen: Tensor,
        *,
        temperature: float = 1.0,
        entropy: bool = False,
    ) -> TokenScores:
        """Return log p(token | those before it) of chosen tokens, with gradients.

        Rows are read without their padding, wherever it is. There are logits at chosen places
        only.

        Parameters
        ----------
        input_ids
            int[B, T].
        attention_mask
            [B, T], not 0 where the row has a token.
        chosen
            [B, T], not 0 where a log-probability is asked for.

        Raises
        ------
        DataError
            If padding is chosen, or a row's first token, if a row is longer than the context, or
            a token is outside the vocabulary.
        """
        ids, readable, chosen = (
            tensor.to(self.device) for tensor in (input_ids, attention_mask != 0, chosen != 0)
        )
        rows = _Rows(ids, readable)
        self._check(rows, chosen)
        wanted = rows.compact(chosen)[:, 1:]
        logits = self.chosen_logits(rows.ids[:, :-1], wanted).float()
        if temperature != 1.0:
            logits = logits / temperature
        log_probs = -F.cross_entropy(logits, rows.ids[:, 1:][wanted], reduction="none")
        spread = _entropy(logits) if entropy else None
        empty = torch.zeros(ids.shape, device=self.device)
        return TokenScores(
            empty.masked_scatter(chosen, log_probs),
            None if spread is None else empty.masked_scatter(chosen, spread),
        )

    def hidden(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return what the last layer gives [B, T, H], with gradients; 0.0 at padding."""
        ids = input_ids.to(self.device)
        if attention_mask is None:
            return self._last_hidden(ids)
        readable = attention_mask.to(self.device) != 0
        rows = _Rows(ids, readable)
        values = self._last_hidden(rows.ids)
        found = values[rows.readable]
        empty = found.new_zeros(*ids.shape, found.shape[-1])
        return empty.masked_scatter(readable[..., None], found)

    def _check(self, rows: _Rows, chosen: Tensor) -> None:
        if bool((chosen & ~rows.read_before).any()):
            raise DataError(
                "chosen: got a place that is padding, or the first of its row; a log-probability"
                " is that of a token after others. Leave it out of the loss mask."
            )
        if rows.ids.shape[1] > self.context_length:
            raise DataError(
                f"input_ids: got a row of {rows.ids.shape[1]} tokens; this model's context takes"
                f" {self.context_length}. Lower max_sequence_length."
            )
        outside = rows.ids[(rows.ids < 0) | (rows.ids >= self.vocabulary_size)]
        if outside.numel():
            raise DataError(
                f"input_ids: got token {int(outside[0])}, expected 0 to {self.vocabulary_size - 1},"
                " the model's vocabulary. Encode text with the model's own tokenizer."
            )

    @abstractmethod
    def chosen_logits(self, ids: Tensor, chosen: Tensor) -> Tensor:
        """Return the logits [n, V] after places chosen by bool[B, T], rows padded on the right."""

    @abstractmethod
    def _last_hidden(self, ids: Tensor) -> Tensor:
        """What the last layer gives [B, T, H], rows padded on the right."""

    @abstractmethod
    def start(self, ids: Tensor, readable: Tensor) -> tuple[Tensor, GenerationCache]:
        """Read prompts int[B, T] padded on the left; the logits [B, V] of the next token."""

    @abstractmethod
    def step(self, tokens: Tensor, cache: GenerationCache) -> Tensor:
        """Read one more token per row, int[B]; the logits [B, V] of the next."""

    @abstractmethod
    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the weights that training changes; of an adapted model only the adapter's."""

    @abstractmethod
    def reference(self) -> LanguageModel:
        """Return the model to stay close to, which training does not change.

        A :meth:`snapshot`; of a model whose adapter changes nothing yet its base, which is no copy.
        """

    @abstractmethod
    def snapshot(self) -> LanguageModel:
        """Return a copy with the weights as they are, which training does not change.

        What is not trained here either is shared.
        """

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Of the weights as they were loaded."""

    @abstractmethod
    def shard(self, mesh: DeviceMesh) -> None:
        """Keep this process's share of the weights alone, on its device of the mesh.

        From then on all processes of the mesh read it together, and it answers no prompts.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write it in Hugging Face's layout; an adapter in PEFT's."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Take the weights that :meth:`save` wrote.

        Raises
        ------
        DataError
            If they are another model's.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of the weights that training changes, by name, on the CPU."""

    @abstractmethod
    def load_state_dict(self, weights: Mapping[str, Tensor]) -> None:
        """Take the weights that :meth:`state_dict` returned.

        Raises
        ------
        DataError
            If they are another model's.
        """


class _Rows:
    """Rows without their padding, laid to the left of a rectangle as wide as the longest."""

    def __init__(self, ids: Tensor, readable: Tensor) -> None:
        self._order: Tensor | None = None
        places = readable.cumsum(1)
        self.read_before = readable & (places > 1)
        """bool[B, T] of the given layout: tokens that come after others."""
        lengths = places[:, -1:]
        self._width = max(2, int(lengths.max()))  # so that nothing chosen is no special case
        if not torch.equal(readable, torch.arange(ids.shape[1], device=ids.device) < lengths):
            self._order = torch.sort(~readable, dim=1, stable=True).indices[:, : self._width]
        self.readable = self.compact(readable)
        self.ids = self.compact(ids).masked_fill(~self.readable, 0)

    def compact(self, values: Tensor) -> Tensor:
        """Lay values of the given layout likewise."""
        if self._order is None:
            return values[:, : self._width]
        return values.gather(1, self._order)


def _entropy(logits: Tensor) -> Tensor:
    log_probs = logits.log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)
