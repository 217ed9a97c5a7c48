"""Contents of a replay buffer as a value, optionally only those written since a stage.

A buffer is a ring: write w is stored at index w modulo its capacity. Its content is therefore the
last writes, and a stage needs to store only new ones; earlier stages store, and are read for, the
others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor

from ratchet.errors import ParameterError, StateError

if TYPE_CHECKING:
    from torchrl.data import ReplayBuffer

Frames = dict[str, Tensor]
SEPARATOR = "/"


@dataclass
class ReplayContent:
    """The last writes into a buffer.

    Attributes
    ----------
    write_count
        The total number of writes.
    size
        The number of retained writes, the last ones.
    segments
        These, oldest first: each a mapping of names to tensors ``[N, …]``. May be fewer than
        ``size`` if the first ones are stored elsewhere.
    """

    write_count: int = 0
    size: int = 0
    segments: list[Frames] = field(default_factory=list)

    @property
    def first(self) -> int:
        """The index of the first write in the segments."""
        return self.write_count - sum(count_frames(segment) for segment in self.segments)

    def joined(self) -> Frames:
        """Return all segments, concatenated."""
        if len(self.segments) == 1:
            return self.segments[0]
        names = self.segments[0] if self.segments else ()
        return {name: torch.cat([part[name] for part in self.segments]) for name in names}


def count_frames(frames: Frames) -> int:
    """Count the frames of a segment."""
    return len(next(iter(frames.values()))) if frames else 0


def take_replay(buffer: ReplayBuffer, since: int = 0) -> ReplayContent:
    """Copy a buffer's content, starting with write number ``since``."""
    writes, size = _write_count(buffer), len(buffer)
    first = max(since, writes - size)
    content = ReplayContent(writes, size)
    if first < writes:
        slots = torch.arange(first, writes) % _capacity(buffer)
        frames = buffer.storage.get(slots).to("cpu").flatten_keys(SEPARATOR)
        content.segments.append(
            {str(name): frames.get(name).contiguous().clone() for name in sorted(frames.keys())}
        )
    return content


def load_replay(buffer: ReplayBuffer, content: ReplayContent) -> None:
    """Restore a complete content."""
    if content.first != content.write_count - content.size:
        raise StateError(
            f"replay buffer: the state has the writes from {content.first} on, expected those from"
            f" {content.write_count - content.size}. An earlier stage is missing: retrain."
        )
    capacity = _capacity(buffer)
    if content.size > capacity:
        raise StateError(
            f"replay buffer: the state has {content.size} frames, expected at most {capacity}."
        )
    buffer.empty()
    start = content.first
    for segment in content.segments:
        slots = torch.arange(start, start + count_frames(segment)) % capacity
        batch = TensorDict(segment, batch_size=[len(slots)]).unflatten_keys(SEPARATOR)
        buffer.storage.set(slots, batch)
        start += len(slots)
    writer: Any = buffer.writer
    writer.load_state_dict(
        {"_cursor": content.write_count % capacity, "_write_count": content.write_count}
    )


def take_sampler(buffer: ReplayBuffer) -> dict[str, Any]:
    """Copy the states of a buffer's sampler and transforms."""
    return {"transform": buffer.transform.state_dict(), "sampler": buffer.sampler.state_dict()}


def load_sampler(buffer: ReplayBuffer, state: dict[str, Any]) -> None:
    """Restore the result of :func:`take_sampler`."""
    buffer.transform.load_state_dict(state["transform"])
    sampler: Any = buffer.sampler
    sampler.load_state_dict(state["sampler"])
    order, device = getattr(sampler, "_sample_list", None), getattr(buffer.storage, "device", None)
    if isinstance(order, Tensor) and isinstance(device, torch.device):
        sampler._sample_list = order.to(device)  # the next order is sampled on this one's device


def check_buffer(buffer: ReplayBuffer) -> None:
    """Refuse a buffer whose writes cannot be separated."""
    from torchrl.data import ConsumingSampler, PrioritizedSampler, RoundRobinWriter
    from torchrl.data.replay_buffers.storages import TensorStorage

    storage, writer, sampler = buffer.storage, buffer.writer, buffer.sampler
    if not isinstance(storage, TensorStorage) or storage.ndim != 1:
        raise ParameterError(
            f"replay_buffer.storage: got {type(storage).__name__} with ndim"
            f" {getattr(storage, 'ndim', 1)}, which cannot be stored between stages; expected"
            " lazy_memmap or lazy_tensor with ndim 1."
        )
    if not isinstance(writer, RoundRobinWriter):
        raise ParameterError(
            f"replay_buffer.writer: got {type(writer).__name__}, which cannot be stored between"
            " stages; expected round_robin."
        )
    if isinstance(sampler, PrioritizedSampler):
        raise ParameterError(
            "replay_buffer.sampler: got a prioritized one, whose priorities are in a tree that only"
            " pickle can save; expected random or without_replacement."
        )
    if isinstance(sampler, ConsumingSampler):
        raise ParameterError(
            "replay_buffer.sampler: got consuming, which overwrites sampled entries"
            " and does not record which are left, so that a resumed run would differ; expected"
            " random or without_replacement."
        )


def frames_file(folder: Path, name: str) -> Path:
    """Return the file of a buffer's new frames in a stage's folder."""
    return folder / f"{name}.frames.safetensors"


def _write_count(buffer: ReplayBuffer) -> int:
    return int(buffer.write_count)


def _capacity(buffer: ReplayBuffer) -> int:
    return int(buffer.storage.max_size)
