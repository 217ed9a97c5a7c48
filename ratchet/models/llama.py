"""Llama in plain torch, for small models on a CPU; fast to import.

The same weights and the same logits as transformers' ``LlamaForCausalLM``, which runs
unsupported models. Projections with the same input are stored as one matrix.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from ratchet.errors import DataError
from ratchet.models.folders import WEIGHTS_FILE
from ratchet.models.llama_shape import LlamaShape

_GROWTH = 32  # tokens by which a full cache is extended
_KEPT_ROOM = 8  # free tokens in a copied cache: less to copy
_FEW_PAIRS = 512  # of positions: below, torch's attention is slower to differentiate
_ROWS_AT_A_TIME = 16  # of prompts: their activations fit into a core's cache


@dataclass(slots=True)
class Cache:
    """Keys and values of the read tokens: [layers, 2, B, heads, S, head], ``length`` of S used.

    ``mask`` [B, S] is what attention adds, -inf at padding; ``positions`` int[B] the position of
    each row's next token.
    """

    values: Tensor
    mask: Tensor
    positions: Tensor
    length: int
    block_size: ClassVar[int] = 1
    least_active: ClassVar[float] = 0.75
    longest: ClassVar[int] = sys.maxsize

    def make_room(self) -> None:
        """Extend the cache if it is full."""
        if self.length < self.mask.shape[1]:
            return
        *outer, length, width = self.values.shape
        values = self.values.new_empty(*outer, length + _GROWTH, width)
        values[..., :length, :] = self.values
        self.values = values
        self.mask = F.pad(self.mask, (0, _GROWTH))

    def keep(self, rows: Tensor) -> None:
        """Select rows int[B'], in this order; a row may be selected several times."""
        room = min(self.mask.shape[1], self.length + _KEPT_ROOM)
        values = self.values[..., :room, :].contiguous()  # index_select is slow on others
        self.values = values.index_select(2, rows)
        self.mask = self.mask[:, :room].index_select(0, rows)
        self.positions = self.positions[rows]

    def append(self, other: Cache) -> None:
        """Append another cache's rows: both end at the same position, the shorter is padded."""
        length = max(self.length, other.length)
        layers, two, rows, heads, _, width = self.values.shape
        total = rows + other.values.shape[2]
        values = self.values.new_zeros(layers, two, total, heads, length + _GROWTH, width)
        mask = self.mask.new_full((total, length + _GROWTH), -torch.inf)
        mask[:, length:] = 0.0
        for cache, start, end in ((self, 0, rows), (other, rows, total)):
            at = length - cache.length
            values[:, :, start:end, :, at:length] = cache.values[..., : cache.length, :]
            mask[start:end, at:length] = cache.mask[:, : cache.length]
        self.values, self.mask, self.length = values, mask, length
        self.positions = torch.cat([self.positions, other.positions])
        self._drop_padding()

    def _drop_padding(self) -> None:
        """Drop the positions before the first one that a row reads."""
        read = (self.mask[:, : self.length] == 0).any(0)
        first = int(read.int().argmax())
        self.values, self.mask = self.values[..., first:, :], self.mask[:, first:]
        self.length -= first


class LlamaLayer(nn.Module):
    """The parameters of a layer; ``*_in`` stack projections with the same input."""

    def __init__(self, shape: LlamaShape, queries: int, keys: int) -> None:
        super().__init__()
        width = shape.hidden_size
        self.attention_norm = nn.Parameter(torch.empty(width))
        self.attention_in = nn.Parameter(torch.empty(queries + 2 * keys, width))
        self.attention_out = nn.Parameter(torch.empty(width, queries))
        self.mlp_norm = nn.Parameter(torch.empty(width))
        self.mlp_in = nn.Parameter(torch.empty(2 * shape.intermediate_size, width))
        self.mlp_out = nn.Parameter(torch.empty(width, shape.intermediate_size))


class PlainLlama(nn.Module):
    """A Llama with uninitialised weights: load or initialise them."""

    _cos: Tensor
    _sin: Tensor

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.hidden_size
        self._queries = shape.num_attention_heads * shape.head_dim
        self._keys = shape.num_key_value_heads * shape.head_dim
        self.embeddings = nn.Parameter(torch.empty(shape.vocab_size, width))
        self.layers = [
            LlamaLayer(shape, self._queries, self._keys) for _ in range(shape.num_hidden_layers)
        ]
        for number, layer in enumerate(self.layers):
            self.add_module(f"layer{number}", layer)
        self.norm = nn.Parameter(torch.empty(width))
        tied = shape.tie_word_embeddings
        self.head = self.embeddings if tied else nn.Parameter(torch.empty(shape.vocab_size, width))
        exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
        angles = torch.arange(shape.max_position_embeddings, dtype=torch.float64)[:, None] * (
            shape.rope_theta**-exponents
        )
        cos, sin = angles.cos(), angles.sin()
        self.register_buffer("_cos", torch.cat([cos, cos], dim=1), persistent=False)
        self.register_buffer("_sin", torch.cat([-sin, sin], dim=1), persistent=False)

    def initialise(self, generator: torch.Generator, scale: float = 0.06) -> None:
        """Sample all weights: matrices normal with this standard deviation, norms 1."""
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.ndim == 1:
                    parameter.fill_(1.0)
                else:
                    parameter.normal_(0.0, scale, generator=generator)

    def forward(self, ids: Tensor) -> Tensor:
        """Read rows int[B, T], padded on the right, into hidden states [B, T, hidden].

        :meth:`logits` turns these into logits.
        """
        cos, sin = self._rotations(torch.arange(ids.shape[1], device=ids.device))
        x = F.embedding(ids, self.embeddings)
        for layer in self.layers:
            query, key, value = self._project(layer, x, cos, sin)
            x = self._add(layer, x, self._attend(query, key, value, None))
        return self._normalise(x, self.norm)

    def read_behind(self, prompts: Tensor, of_row: Tensor, lengths: Tensor, rest: Tensor) -> Tensor:
        """Read rows with shared prefixes as :meth:`forward` does, each prefix once.

        Parameters
        ----------
        prompts
            int[U, P], padded on the right.
        of_row, lengths
            int[B], the index of each row's prefix, and its length.
        rest
            int[B, A], the tokens after the prefix, padded on the right.

        Returns
        -------
        Tensor
            Hidden states of ``rest``, [B, A, hidden].
        """
        (u, p), (b, a), shared = prompts.shape, rest.shape, prompts.numel()
        position = torch.arange(max(p, a), device=rest.device)
        rest_positions = (lengths[:, None] + position[:a]).clamp(max=len(self._cos) - 1)
        positions = torch.cat([position[:p].repeat(u), rest_positions.flatten()])
        cos, sin = self._rotations(positions)
        in_prompt = (position[:p] < lengths[:, None])[:, None].expand(b, a, p)
        before = (position[:a, None] >= position[:a]).expand(b, a, a)
        mask = self._mask(torch.cat([in_prompt, before], dim=2))[:, None]
        # one row of all tokens: only attention separates sequences
        x = F.embedding(torch.cat([prompts.flatten(), rest.flatten()]), self.embeddings)[None]
        for layer in self.layers:
            parts = (
                torch.split(part.squeeze(0), [shared, b * a], dim=1)
                for part in self._project(layer, x, cos, sin)
            )
            (first, query), (first_key, key), (first_value, value) = (
                (_unflatten(of_prompts, u, p), _unflatten(of_rest, b, a))
                for of_prompts, of_rest in parts
            )
            key = torch.cat([_repeat(first_key, of_row), key], dim=2)
            value = torch.cat([_repeat(first_value, of_row), value], dim=2)
            read = self._attend(query, key, value, mask).flatten(0, 1)
            if layer is self.layers[-1]:  # the prompts' outputs are not needed
                x = x[:, shared:]
            else:
                within = self._attend(first, first_key, first_value, None).flatten(0, 1)
                read = torch.cat([within, read])
            x = self._add(layer, x, read[None])
        return self._normalise(x, self.norm).view(b, a, -1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Turn hidden states [..., hidden] into logits [..., V]."""
        return F.linear(hidden, self.head)

    def start(self, ids: Tensor, readable: Tensor) -> tuple[Tensor, Cache]:
        """Read prompts that are padded on the left.

        Parameters
        ----------
        ids
            int[B, T].
        readable
            bool[B, T], False where padding.

        Returns
        -------
        tuple
            Logits [B, V] of the next token, and the cache for :meth:`step`.
        """
        batch, length = ids.shape
        s = self.shape
        room = length + _GROWTH
        size = (s.num_hidden_layers, 2, batch, s.num_key_value_heads, room, s.head_dim)
        positions = (readable.cumsum(1) - 1).clamp(min=0)
        values = self.embeddings.new_empty(size)
        mask = F.pad(self._mask(readable), (0, _GROWTH))
        cache = Cache(values, mask, positions[:, -1] + 1, length)
        before = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
        # padding must attend to at least one position
        itself = torch.eye(length, dtype=torch.bool, device=ids.device)
        logits = []
        for begin in range(0, batch, _ROWS_AT_A_TIME):
            rows = slice(begin, begin + _ROWS_AT_A_TIME)
            mask = self._mask((before & readable[rows, None]) | itself)[:, None]
            logits.append(self._read(ids[rows], positions[rows], mask, values[:, :, rows], 0))
        return torch.cat(logits), cache

    def step(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Read one more token per row, int[B]; return the logits [B, V] of the next."""
        at = cache.length
        cache.make_room()
        cache.length += 1
        mask = cache.mask[:, None, None, : at + 1]
        logits = self._read(tokens[:, None], cache.positions[:, None], mask, cache.values, at)
        cache.positions = cache.positions + 1
        return logits

    def _read(
        self, ids: Tensor, positions: Tensor, mask: Tensor, cached: Tensor, at: int
    ) -> Tensor:
        """Read tokens int[B, T] after the cache's first ``at``; return logits [B, V]."""
        cos, sin = self._rotations(positions)
        end = at + ids.shape[1]
        x = F.embedding(ids, self.embeddings)
        for layer, (keys, values) in zip(self.layers, cached, strict=True):
            query, keys[:, :, at:end], values[:, :, at:end] = self._project(layer, x, cos, sin)
            if layer is self.layers[-1]:  # the other positions' outputs are not needed
                query, x, mask = query[:, :, -1:], x[:, -1:], mask[:, :, -1:]
            x = self._add(layer, x, self._attend(query, keys[:, :, :end], values[:, :, :end], mask))
        return self.logits(self._normalise(x[:, -1], self.norm))

    def _mask(self, readable: Tensor) -> Tensor:
        """Return the attention mask to add: -inf at unreadable positions."""
        zeros = self.embeddings.new_zeros(readable.shape)
        return zeros.masked_fill_(~readable, -torch.inf)

    def _rotations(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [1 or B, 1, T, head] of positions int[T] or int[B, T]."""
        indices = positions if positions.ndim == 2 else positions[None]
        dtype = self.embeddings.dtype
        return self._cos[indices][:, None].to(dtype), self._sin[indices][:, None].to(dtype)

    def _project(
        self, layer: LlamaLayer, x: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, [B, heads, T, head] each; the first two rotated."""
        normed = self._normalise(x, layer.attention_norm)
        heads = F.linear(normed, layer.attention_in).view(*x.shape[:2], -1, self.shape.head_dim)
        queries, keys = self.shape.num_attention_heads, self.shape.num_key_value_heads
        rotated, value = torch.split(heads.transpose(1, 2), [queries + keys, keys], dim=1)
        query, key = torch.split(_rotate(rotated, cos, sin), [queries, keys], dim=1)
        return query, key, value

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Attend to earlier positions, or to those in the mask: [B, T, hidden]."""
        shared = self._queries != self._keys
        pairs = query.shape[2] * key.shape[2]
        if mask is not None and key.requires_grad and not shared and pairs <= _FEW_PAIRS:
            read = _attend_by_products(query, key, value, mask)
        else:
            read = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=shared
            )
        return read.transpose(1, 2).flatten(-2)

    def _add(self, layer: LlamaLayer, x: Tensor, attended: Tensor) -> Tensor:
        x = x + F.linear(attended, layer.attention_out)
        gate, up = F.linear(self._normalise(x, layer.mlp_norm), layer.mlp_in).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, layer.mlp_out)

    def _normalise(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.shape.rms_norm_eps)

    def weights(self) -> dict[str, Tensor]:
        """Return the weights by their names in transformers."""
        return {name: view.detach().contiguous() for name, view in self._targets().items()}

    def save(self, folder: Path) -> None:
        """Write the weights in float32, by their names in transformers."""
        weights = {name: tensor.float() for name, tensor in self.weights().items()}
        save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights as returned by :meth:`weights`."""
        with torch.no_grad():
            for name, target in self._targets().items():
                weight = weights.get(name)
                if weight is None or weight.shape != target.shape:
                    got = "nothing" if weight is None else f"the shape {tuple(weight.shape)}"
                    raise DataError(
                        f"weights: got {got} for {name}, expected the shape {tuple(target.shape)}."
                        " config.json and model.safetensors don't belong together."
                    )
                target.copy_(weight)

    def _targets(self) -> dict[str, Tensor]:
        """Return views of the parameters by their names in transformers."""
        named: dict[str, Tensor] = {
            "model.embed_tokens.weight": self.embeddings,
            "model.norm.weight": self.norm,
        }
        if not self.shape.tie_word_embeddings:
            named["lm_head.weight"] = self.head
        for number, layer in enumerate(self.layers):
            for ours, theirs in _names(number).items():
                named |= zip(
                    theirs, getattr(layer, ours).split(self.projection_sizes(ours)), strict=True
                )
        return named

    def projection_sizes(self, name: str) -> list[int]:
        """Return the heights of the projections that are stacked in a parameter of a layer."""
        match name:
            case "attention_in":
                return [self._queries, self._keys, self._keys]
            case "mlp_in":
                return [self.shape.intermediate_size] * 2
        return [self.shape.hidden_size]


def _attend_by_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attend by matrix products [B, heads, T, head]; ``mask`` [B, 1, T, S] is added."""
    rows, heads, length, width = query.shape
    added = mask.expand(-1, heads, -1, -1).flatten(0, 1)
    query, key, value = (part.flatten(0, 1) for part in (query, key, value))
    scores = torch.baddbmm(added, query, key.transpose(1, 2), alpha=width**-0.5)
    return torch.bmm(scores.softmax(-1), value).view(rows, heads, length, width)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs, one of each half of x, by angles; the sines of the first half are negative."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([second, first], dim=-1) * sin


def _unflatten(heads: Tensor, rows: int, length: int) -> Tensor:
    """Turn [heads, rows · length, head] into [rows, heads, length, head]."""
    return heads.reshape(len(heads), rows, length, -1).transpose(0, 1)


def _repeat(values: Tensor, rows: Tensor) -> Tensor:
    """Select rows of [U, ...] as an embedding: its gradients are summed fastest."""
    return F.embedding(rows, values.flatten(1)).reshape(-1, *values.shape[1:])


def _names(layer: int) -> dict[str, tuple[str, ...]]:
    """Return transformers' names of the parts of each parameter of a layer."""
    prefix = f"model.layers.{layer}"
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    return {
        "attention_norm": (f"{prefix}.input_layernorm.weight",),
        "attention_in": tuple(f"{attention}.{part}_proj.weight" for part in "qkv"),
        "attention_out": (f"{attention}.o_proj.weight",),
        "mlp_norm": (f"{prefix}.post_attention_layernorm.weight",),
        "mlp_in": (f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"),
        "mlp_out": (f"{mlp}.down_proj.weight",),
    }
