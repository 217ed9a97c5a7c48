"""Trainable causal language models: log-probabilities with gradients.

Trainers use models only through this interface; ``loading`` implements it for small Llamas,
``hugging_face`` for all others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from weakref import WeakSet

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ratchet.errors import DataError
from ratchet.language_models.local.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from ratchet.models.layer_shape import LayerShape

LOGITS_AT_ONCE = 2**26
"""Logits in memory at a time, 256 MiB in float32; those of a longer text are computed twice."""

RECOMPUTED_FROM = 100_000_000
"""Parameters of the smallest models that compute activations twice on a GPU by default."""

Head: TypeAlias = Callable[[Tensor], Tensor]
"""Turns hidden states [n, H] into logits [n, V]."""


class GenerationCache(Protocol):
    """The key-value cache of a batch."""

    @property
    def block_size(self) -> int:
        """Number of tokens to generate between two checks for ended rows."""
        ...

    @property
    def least_active(self) -> float:
        """Share of its rows that are active, below which the others should be removed."""
        ...

    @property
    def longest(self) -> int:
        """Maximal tokens of an appended row; 0 if no rows can be appended."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Select these rows, int[B'], in this order; repetitions are allowed."""
        ...

    def append(self, other: Any) -> None:  # noqa: ANN401 -- of the same class
        """Append the rows of another cache of the same model."""
        ...


@dataclass(frozen=True, slots=True)
class TokenScores:
    """A model's scores of given tokens, 0.0 where not requested.

    Parameters
    ----------
    log_probs
        float[B, T].
    entropy
        float[B, T], of the distribution of each token; None if not requested.
    """

    log_probs: Tensor
    entropy: Tensor | None = None


class LanguageModel(ABC):
    """A causal language model with its tokenizer, and gradients of its trainable weights.

    Parameters
    ----------
    tokenizer
        From the model's folder.
    pad_token_id
        The trainers' padding token; masks are never derived from it.
    context_length
        Maximal tokens of prompt and completion together.
    vocabulary_size
        Number of tokens in the vocabulary.
    device
        The device of its weights, and of the results of ``score`` and ``hidden``.
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
        self.recomputes_activations = False
        """Whether the backward pass computes activations again instead of keeping them."""
        self.num_on_device = 1
        """How many trained models share the device's memory, of which each gets an equal part."""
        self.sharing: WeakSet[LanguageModel] = WeakSet([self])
        """The models that have its frozen weights in common, itself included."""

    def score(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        chosen: Tensor,
        *,
        temperature: float = 1.0,
        entropy: bool = False,
        entropy_gradient: bool = False,
    ) -> TokenScores:
        """Return log p(token | previous tokens) of chosen tokens, with gradients.

        Padding is removed from rows wherever it is. Logits are computed at chosen positions only,
        at most ``LOGITS_AT_ONCE`` of them at a time, and again in the backward pass if there are
        more.

        Raises DataError if padding or a row's first token is chosen.

        Parameters
        ----------
        input_ids
            int[B, T].
        attention_mask
            [B, T], not 0 where the row has a token.
        chosen
            [B, T], not 0 where a log-probability is requested.
        entropy
            Also return the entropies, with gradients if ``entropy_gradient``.
        """
        ids, readable, chosen = (
            tensor.to(self.device) for tensor in (input_ids, attention_mask != 0, chosen != 0)
        )
        rows = _Rows(ids, readable)
        self._check(rows, chosen)
        targets = rows.compact(chosen)[:, 1:]

        def score(logits: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
            logits = logits.float()
            if temperature != 1.0:
                logits = logits / temperature
            log_probs = -F.cross_entropy(logits, tokens, reduction="none")
            if not entropy:
                return (log_probs,)
            return log_probs, _entropy(logits if entropy_gradient else logits.detach())

        log_probs, *entropies = self.map_logits(
            score, rows.ids[:, :-1], targets, rows.ids[:, 1:][targets]
        )
        empty = torch.zeros(ids.shape, device=self.device)
        return TokenScores(
            empty.masked_scatter(chosen, log_probs),
            empty.masked_scatter(chosen, entropies[0]) if entropies else None,
        )

    def hidden(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the last layer's output [B, T, H], with gradients; 0.0 at padding."""
        ids = input_ids.to(self.device)
        if attention_mask is None:
            return self._last_hidden(ids)
        readable = attention_mask.to(self.device) != 0
        rows = _Rows(ids, readable)
        values = self._last_hidden(rows.ids)
        hidden_states = values[rows.readable]
        empty = hidden_states.new_zeros(*ids.shape, hidden_states.shape[-1])
        return empty.masked_scatter(readable[..., None], hidden_states)

    def _check(self, rows: _Rows, chosen: Tensor) -> None:
        if bool((chosen & ~rows.read_before).any()):
            raise DataError(
                "chosen: got padding, or the first token of a row; a log-probability"
                " needs previous tokens. Remove it from the loss mask."
            )
        if rows.ids.shape[1] > self.context_length:
            raise DataError(
                f"input_ids: got a row of {rows.ids.shape[1]} tokens; the model's context has"
                f" {self.context_length}. Lower max_sequence_length."
            )
        outside = rows.ids[(rows.ids < 0) | (rows.ids >= self.vocabulary_size)]
        if outside.numel():
            raise DataError(
                f"input_ids: got token {int(outside[0])}, expected 0 to {self.vocabulary_size - 1},"
                " the model's vocabulary. Encode text with the model's own tokenizer."
            )

    def map_logits(
        self,
        function: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
        ids: Tensor,
        chosen: Tensor,
        tokens: Tensor,
    ) -> tuple[Tensor, ...]:
        """Apply a function to the logits after chosen positions, with few of them in memory.

        The function gets at most ``LOGITS_AT_ONCE`` logits at a time, and again in the backward
        pass if there are more. Its results are concatenated.

        Parameters
        ----------
        function
            Logits [m, V] and their tokens [m] → tensors with one dimension or more.
        ids
            int[B, T], padded on the right.
        chosen
            bool[B, T], with n positions.
        tokens
            int[n], a token of each position, such as the next one.
        """
        hidden, head = self.read_chosen(ids.to(self.device), chosen.to(self.device))

        def apply(hidden: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
            return function(head(hidden), tokens)

        tokens = tokens.to(self.device)
        size = LOGITS_AT_ONCE // self.vocabulary_size
        if len(hidden) <= size:
            return apply(hidden, tokens)
        chunks = [
            checkpoint(apply, *chunk, use_reentrant=False, preserve_rng_state=False)
            for chunk in zip(torch.split(hidden, size), torch.split(tokens, size), strict=True)
        ]
        return tuple(torch.cat(parts) for parts in zip(*chunks, strict=True))

    def chosen_logits(self, ids: Tensor, chosen: Tensor) -> Tensor:
        """Return the logits [n, V] after chosen positions, bool[B, T], of right-padded rows."""
        hidden, head = self.read_chosen(ids.to(self.device), chosen.to(self.device))
        return head(hidden)

    @abstractmethod
    def read_chosen(self, ids: Tensor, chosen: Tensor) -> tuple[Tensor, Head]:
        """Return hidden states [n, H] at chosen positions, bool[B, T], of right-padded rows.

        And the function that turns any of them into logits.
        """

    @abstractmethod
    def _last_hidden(self, ids: Tensor) -> Tensor:
        """Return the last layer's output [B, T, H], rows padded on the right."""

    @abstractmethod
    def start(self, ids: Tensor, readable: Tensor) -> tuple[Tensor, GenerationCache]:
        """Read prompts int[B, T] padded on the left; return the next token's logits [B, V]."""

    @abstractmethod
    def step(self, tokens: Tensor, cache: GenerationCache) -> Tensor:
        """Read one more token per row, int[B]; return the next token's logits [B, V]."""

    def rows_at_once(self, length: int, most: int) -> int:
        """Return how many rows of this length to generate together, at most ``most``."""
        return most

    def hold(self, cache: GenerationCache, rows: int, length: int) -> GenerationCache:
        """Return the cache of read prompts as one that can hold further rows of this length."""
        return cache

    @abstractmethod
    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the trainable weights; only the adapter's if the model is adapted."""

    @abstractmethod
    def share_frozen_weights(self, others: Iterable[LanguageModel]) -> None:
        """Use the frozen weights of one of the others, if it has the same, instead of copies."""

    @abstractmethod
    def reference(self) -> LanguageModel:
        """Return the frozen reference model.

        A :meth:`snapshot`; if the adapter is still zero, the base model, which is not copied.
        """

    @abstractmethod
    def snapshot(self) -> LanguageModel:
        """Return a frozen copy with the current weights; other frozen weights are shared."""

    @abstractmethod
    def recompute_activations(self) -> None:
        """Compute layers' activations again in the backward pass instead of keeping them.

        Does nothing for small Llamas.
        """

    @property
    def should_recompute_activations(self) -> bool:
        """Whether it is on a GPU and so large that its activations rarely fit into the memory."""
        return self.device.type == "cuda" and self.num_parameters >= RECOMPUTED_FROM

    @abstractmethod
    def all_parameters(self) -> list[torch.nn.Parameter]:
        """Return the weights, trained or not."""

    @property
    def num_parameters(self) -> int:
        """The number of weights, trained or not."""
        return sum(weight.numel() for weight in self.all_parameters())

    @property
    @abstractmethod
    def shape(self) -> LayerShape:
        """Sizes of its layers."""

    @property
    def keeps_logits(self) -> bool:
        """Whether the logits of all chosen tokens are in memory, in the weights' type."""
        return False

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The type of the weights as loaded."""

    @abstractmethod
    def shard(self, mesh: DeviceMesh) -> None:
        """Keep only this process's shard of the weights, on its device of the mesh.

        From then on, all processes of the mesh must call the model together, and it cannot
        generate.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Save in Hugging Face's layout; an adapter in PEFT's."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Load weights saved by :meth:`save`."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of the trainable weights, by name, on the CPU."""

    @abstractmethod
    def load_state_dict(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights returned by :meth:`state_dict`."""


def pad_left(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the arguments of :meth:`LanguageModel.start`: ids int64[B, T], and their mask."""
    longest = max(map(len, prompts))
    ids = np.zeros((len(prompts), longest), np.int64)
    readable = np.zeros((len(prompts), longest), np.bool_)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = prompt
        readable[row, longest - len(prompt) :] = True
    return torch.from_numpy(ids).to(device), torch.from_numpy(readable).to(device)


class _Rows:
    """Rows without padding, left-aligned in a rectangle as wide as the longest."""

    def __init__(self, ids: Tensor, readable: Tensor) -> None:
        self._order: Tensor | None = None
        positions = readable.cumsum(1)
        self.read_before = readable & (positions > 1)
        """bool[B, T] in the input layout: tokens with previous ones."""
        lengths = positions[:, -1:]
        self._width = max(2, int(lengths.max()))  # avoids a special case when no token is chosen
        if not torch.equal(readable, torch.arange(ids.shape[1], device=ids.device) < lengths):
            self._order = torch.sort(~readable, dim=1, stable=True).indices[:, : self._width]
        self.readable = self.compact(readable)
        self.ids = self.compact(ids).masked_fill(~self.readable, 0)

    def compact(self, values: Tensor) -> Tensor:
        """Left-align values of the input layout."""
        if self._order is None:
            return values[:, : self._width]
        return values.gather(1, self._order)


def _entropy(logits: Tensor) -> Tensor:
    log_probs = logits.log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)
