"""A key-value cache with a fixed place for each row, whose step is one launch on a GPU.

A step of a model in transformers starts some thousand kernels, which takes a CPU longer than a GPU
needs to run them. Here they are captured once as a CUDA graph and started together. This needs
tensors that never move: a row is read at its own position, and joins or leaves without the others.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from ratchet.language_models.local.network import HuggingFaceCache

_SHORTEST = 128  # positions that attention reads at least
_FEWEST_ROWS = 8  # slots that a step computes at least
_ROW_GROWTH = 4  # … as many times more in the next number of slots
_BLOCK_SIZE = 8  # tokens between two checks for ended rows, for which a GPU waits
_CAPTURING = threading.Lock()  # a process captures one graph at a time
_COPIES_FROM_HOST = ("falcon", "phimoe")  # in each step, which a graph cannot contain


def columns_for(length: int, context_length: int) -> int:
    """Return the positions to read for rows of up to ``length`` tokens, in few different numbers.

    Powers of two and three quarters of them, so that few graphs are captured; at most those of a
    complete context, after whose end a row may generate the rest of a block.
    """
    power = 1 << (length - 1).bit_length()
    smaller = power * 3 // 4
    most = (-(-context_length // _BLOCK_SIZE) + 1) * _BLOCK_SIZE
    return min(max(_SHORTEST, smaller if length <= smaller else power), most)


def rows_for(count: int, size: int) -> int:
    """Return the slots to compute if ``count`` of ``size`` are used, in few different numbers."""
    rows = _FEWEST_ROWS
    while rows < count:
        rows *= _ROW_GROWTH
    return min(rows, size)


def slot_length(length: int, context_length: int) -> int:
    """Return the length of slots for rows of up to ``length`` tokens."""
    return columns_for(length + _BLOCK_SIZE, context_length)


@dataclass(slots=True)
class _NextTokens:
    """Where a step writes: in the first slots, int[size], at their positions, int[size].

    Attention reads ``num_columns`` positions of ``num_rows`` slots.
    """

    slots: Tensor
    positions: Tensor
    num_rows: int
    num_columns: int


class SlotCache:
    """The key-value cache of at most ``size`` rows with at most ``length`` tokens each.

    Parameters
    ----------
    network
        A ``PreTrainedModel`` or ``PeftModel``.
    dynamic
        A cache of the same network, for the shapes.
    context_length
        The number of positions that the network can read.
    """

    def __init__(
        self,
        network: Any,  # noqa: ANN401 -- PreTrainedModel or PeftModel
        dynamic: HuggingFaceCache,
        size: int,
        length: int,
        context_length: int,
    ) -> None:
        device = dynamic.readable.device
        self.shape = size, length
        self.least_active = 1.0
        self.block_size = _BLOCK_SIZE
        self.longest = length - _BLOCK_SIZE  # a row may generate some tokens after its end
        self._network = network
        self._context_length = context_length
        self._tokens = torch.zeros(size, 1, dtype=torch.int64, device=device)
        self._columns = torch.arange(length, device=device)
        self._next = _NextTokens(
            torch.arange(size, device=device),
            torch.zeros(size, dtype=torch.int64, device=device),
            *self.shape,
        )
        self._layers = [_SlotLayer(self._next, self.shape, each) for each in dynamic.past.layers]
        self._past = Cache(layers=list(self._layers))
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._capture_stream: torch.cuda.Stream | None = None
        self.clear()

    def clear(self) -> None:
        """Free all slots."""
        self._next.positions.zero_()
        self._use(np.empty(0, np.int64), np.empty(0, np.int64))

    def _use(self, slots: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Set the slots of the rows, and the tokens in them."""
        positions = self._next.positions
        self._host_slots, self._lengths = slots, lengths
        self._slots = torch.from_numpy(slots).to(positions.device)
        is_used = torch.zeros_like(positions)
        is_used[self._slots] = 1
        self._is_used = is_used

    def keep(self, rows: Tensor) -> None:
        """Free the slots of all rows except these, int[B']."""
        on_host = rows.cpu().numpy()
        self._use(self._host_slots[on_host], self._lengths[on_host])
        if rows_for(len(on_host), self.shape[0]) < self._num_rows:
            self._move_to_front()

    @property
    def _num_rows(self) -> int:
        """The slots that a step computes: all up to the last one used."""
        return rows_for(int(self._host_slots.max(initial=-1)) + 1, self.shape[0])

    @property
    def _num_columns(self) -> int:
        """The positions of the longest row."""
        return columns_for(int(self._lengths.max(initial=1)), self._context_length)

    def _move_to_front(self) -> None:
        """Move the rows to the first slots."""
        count, columns = len(self._host_slots), self._num_columns
        for layer in self._layers:
            for part in (layer.keys, layer.values):
                part[:count, :, :columns] = part[self._slots, :, :columns]
        positions = self._next.positions
        positions[:count] = positions[self._slots]
        self._use(np.arange(count), self._lengths)

    def append(self, other: HuggingFaceCache) -> None:
        """Copy another cache's rows into free slots."""
        lengths = other.readable.sum(1)
        free = np.setdiff1d(np.arange(self.shape[0]), self._host_slots)[: len(lengths)]
        slots = torch.from_numpy(free).to(self._columns.device)
        width = other.readable.shape[1]
        columns = (self._columns[:width] + width - lengths[:, None]).clamp(max=width - 1)
        for layer, read in zip(self._layers, other.past.layers, strict=True):
            for mine, theirs in ((layer.keys, read.keys), (layer.values, read.values)):
                index = columns[:, None, :, None].expand_as(theirs)
                mine[slots, :, :width] = theirs.gather(2, index)  # moves padding to the end
        self._next.positions[slots] = lengths
        host_lengths = lengths.cpu().numpy()
        self._use(
            np.concatenate([self._host_slots, free]),
            np.concatenate([self._lengths, host_lengths]),
        )

    def step(self, tokens: Tensor) -> Tensor:
        """Read one more token per row, int[B]; return the next token's logits [B, V]."""
        self._tokens[self._slots] = tokens[:, None]
        self._lengths = self._lengths + 1
        logits = self._read((self._num_rows, self._num_columns))
        self._next.positions += self._is_used
        return logits[self._slots]

    def _read(self, part: tuple[int, int]) -> Tensor:
        """Return the logits of the first slots, from their first positions: numbers of both."""
        if self._columns.device.type != "cuda":
            return self._run(*part)
        if part not in self._graphs:
            self._graphs[part] = self._capture(*part)
        graph, logits = self._graphs[part]
        graph.replay()
        return logits

    def _capture(self, num_rows: int, num_columns: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        with _CAPTURING, torch.cuda.device(self._columns.device):
            if self._capture_stream is None:
                # its own: the end of a graph frees cuBLAS's workspaces of the graph's stream
                self._capture_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
                self._pool = torch.cuda.graph_pool_handle()
            stream = self._capture_stream
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                # creates handles and workspaces; the graph repeats its writes
                self._run(num_rows, num_columns)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                graph, self._pool, stream=stream, capture_error_mode="thread_local"
            ):
                logits = self._run(num_rows, num_columns)
        return graph, logits

    def _run(self, num_rows: int, num_columns: int) -> Tensor:
        self._next.num_rows, self._next.num_columns = num_rows, num_columns
        positions = self._next.positions[:num_rows]
        readable = self._columns[:num_columns] <= positions[:, None]
        output = self._network(
            input_ids=self._tokens[:num_rows],
            attention_mask=readable[:, None, None],
            position_ids=positions.clamp(max=self._context_length - 1)[:, None],
            past_key_values=self._past,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits


class _SlotLayer(CacheLayerMixin):
    """A layer's keys and values, [size, heads, length, head]."""

    is_compileable = True
    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self, tokens: _NextTokens, shape: tuple[int, int], layer: DynamicLayer) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # of transformers
        self._next, (size, self._length) = tokens, shape
        self.keys, self.values = (
            read.new_zeros(size, read.shape[1], self._length, read.shape[3])
            for read in (layer.keys, layer.values)
            if read is not None
        )
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the tensors exist."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Write each slot's token at its position; return the attended keys and values."""
        rows, end = self._next.num_rows, self._next.num_columns
        slots, at = self._next.slots[:rows], self._next.positions[:rows]
        with _unordered_writes():
            self.keys[slots, :, at] = key_states[:, :, 0]
            self.values[slots, :, at] = value_states[:, :, 0]
        return self.keys[:rows, :, :end], self.values[:rows, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys and the first one's position."""
        return self._next.num_columns, 0

    def get_seq_length(self) -> int:
        """Return 0: there is no length common to all rows."""
        return 0

    def get_max_length(self) -> int:
        """Return the maximal tokens of a row."""
        return self._length


def can_hold(network: Any, dynamic: HuggingFaceCache) -> bool:  # noqa: ANN401 -- PreTrainedModel
    """Return whether slots can replace a cache: all layers read all earlier positions.

    And whether a step can be captured.
    """
    config = network.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        config._attn_implementation == "sdpa"
        and config.model_type not in _COPIES_FROM_HOST
        and all(type(layer) is DynamicLayer for layer in dynamic.past.layers)
        and rope.get("rope_type", "default") not in ("dynamic", "longrope")
    )


@contextlib.contextmanager
def _unordered_writes() -> Iterator[None]:
    """Write to distinct places without sorting these, which deterministic kernels do on a GPU."""
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(is_deterministic, warn_only=warns)
