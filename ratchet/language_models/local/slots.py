"""A key-value cache with a fixed place for each row, whose step is one launch on a GPU.

A step of a model in transformers starts some thousand kernels, which takes a CPU longer than a GPU
needs to run them. Here they are captured once as a CUDA graph and started together. This needs
tensors that never move: a row is read at its own position, and joins or leaves without the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from ratchet.language_models.local.network import HuggingFaceCache

_SHORTEST = 128  # positions that attention reads at least; doubled as rows grow
_BLOCK_SIZE = 8  # tokens between two checks for ended rows, for which a GPU waits


class SlotCache:
    """The key-value cache of at most ``size`` rows with at most ``length`` tokens each.

    Parameters
    ----------
    network
        A ``PreTrainedModel`` or ``PeftModel``.
    dynamic
        A cache of the same network, for the shapes.
    last_position
        The largest position that the network can read.
    """

    def __init__(
        self,
        network: Any,  # noqa: ANN401 -- PreTrainedModel or PeftModel
        dynamic: HuggingFaceCache,
        size: int,
        length: int,
        last_position: int,
    ) -> None:
        device = dynamic.readable.device
        self.shape = size, length
        self.least_active = 1.0
        self.block_size = _BLOCK_SIZE
        self.longest = length - _BLOCK_SIZE  # a row may generate some tokens after its end
        self._network = network
        self._last_position = last_position
        self._tokens = torch.zeros(size, 1, dtype=torch.int64, device=device)
        self._columns = torch.arange(length, device=device)
        self.rows = torch.arange(size, device=device)
        self.positions = torch.zeros(size, dtype=torch.int64, device=device)
        """int[size], of the next token in each slot."""
        self.num_columns = length
        """Positions that attention reads."""
        self._layers = [_SlotLayer(self, layer) for layer in dynamic.past.layers]
        self._past = Cache(layers=list(self._layers))
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self.clear()

    def clear(self) -> None:
        """Free all slots."""
        self.positions.zero_()
        self._use(np.empty(0, np.int64), np.empty(0, np.int64))

    def _use(self, slots: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Set the slots of the rows, and the tokens in them."""
        device = self.positions.device
        self._host_slots, self._lengths = slots, lengths
        self._slots = torch.from_numpy(slots).to(device)
        is_used = torch.zeros_like(self.positions)
        is_used[self._slots] = 1
        self._is_used = is_used

    def keep(self, rows: Tensor) -> None:
        """Free the slots of all rows except these, int[B']."""
        on_host = rows.cpu().numpy()
        self._use(self._host_slots[on_host], self._lengths[on_host])

    def append(self, other: HuggingFaceCache) -> None:
        """Copy another cache's rows into free slots."""
        lengths = other.readable.sum(1)
        free = np.setdiff1d(np.arange(self.shape[0]), self._host_slots)[: len(lengths)]
        slots = torch.from_numpy(free).to(self.positions.device)
        width = other.readable.shape[1]
        columns = (self._columns[:width] + width - lengths[:, None]).clamp(max=width - 1)
        for layer, read in zip(self._layers, other.past.layers, strict=True):
            for mine, theirs in ((layer.keys, read.keys), (layer.values, read.values)):
                index = columns[:, None, :, None].expand_as(theirs)
                mine[slots, :, :width] = theirs.gather(2, index)  # moves padding to the end
        self.positions[slots] = lengths
        host_lengths = lengths.cpu().numpy()
        self._use(
            np.concatenate([self._host_slots, free]),
            np.concatenate([self._lengths, host_lengths]),
        )

    def step(self, tokens: Tensor) -> Tensor:
        """Read one more token per row, int[B]; return the next token's logits [B, V]."""
        self._tokens[self._slots] = tokens[:, None]
        self._lengths = self._lengths + 1
        columns = _SHORTEST
        while columns < self._lengths.max():
            columns *= 2
        logits = self._read(min(columns, self.shape[1]))
        self.positions += self._is_used
        return logits[self._slots]

    def _read(self, num_columns: int) -> Tensor:
        """Return the logits of all slots [size, V], from the first positions of the cache."""
        if self.positions.device.type != "cuda":
            return self._run(num_columns)
        if num_columns not in self._graphs:
            self._graphs[num_columns] = self._capture(num_columns)
        graph, logits = self._graphs[num_columns]
        graph.replay()
        return logits

    def _capture(self, num_columns: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call] # of torch
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._run(num_columns)  # handles and workspaces; the graph repeats its writes
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits = self._run(num_columns)
        return graph, logits

    def _run(self, num_columns: int) -> Tensor:
        self.num_columns = num_columns
        readable = self._columns[:num_columns] <= self.positions[:, None]
        output = self._network(
            input_ids=self._tokens,
            attention_mask=readable[:, None, None],
            position_ids=self.positions.clamp(max=self._last_position)[:, None],
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

    def __init__(self, cache: SlotCache, layer: DynamicLayer) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # of transformers
        self._cache = cache
        size, length = cache.shape
        self.keys, self.values = (
            read.new_zeros(size, read.shape[1], length, read.shape[3])
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
        rows, at, end = self._cache.rows, self._cache.positions, self._cache.num_columns
        with _unordered_writes():
            self.keys[rows, :, at] = key_states[:, :, 0]
            self.values[rows, :, at] = value_states[:, :, 0]
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys and the first one's position."""
        return self._cache.num_columns, 0

    def get_seq_length(self) -> int:
        """Return 0: there is no length common to all rows."""
        return 0

    def get_max_length(self) -> int:
        """Return the maximal tokens of a row."""
        return self._cache.shape[1]


def can_hold(network: Any, dynamic: HuggingFaceCache) -> bool:  # noqa: ANN401 -- PreTrainedModel
    """Return whether slots can replace a cache: all layers read all earlier positions."""
    config = network.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        config._attn_implementation == "sdpa"
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
