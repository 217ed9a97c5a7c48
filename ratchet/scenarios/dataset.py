"""Datasets on tensors, and the cursor that walks through them.

Scenarios make ``TensorDictDataset`` values; a stage saves them, environments gather from them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, overload

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ratchet.errors import DataError, RenamedAttributes, StateError
from ratchet.rollouts.dataset import StoredDataset
from ratchet.seeding import torch_generator


class TensorDictDataset(RenamedAttributes, StoredDataset):
    """Datapoints on tensors with a common leading dimension [N]; a value, never changed.

    Raises
    ------
    DataError
        If there is no leading dimension, or no datapoint.
    """

    renamed_attributes: ClassVar[Mapping[str, str]] = {
        "keys": "the names are dataset.fields",
        "instance_keys": "use environment.data_keys",
    }
    data_file: ClassVar[str] = "data.safetensors"

    def __init__(self, td: TensorDictBase) -> None:
        if td.batch_dims != 1 or len(td) == 0:
            raise DataError(
                f"dataset: got a tensordict of batch size {tuple(td.batch_size)}, expected one"
                " leading dimension with at least one datapoint."
            )
        self.td = td

    def __len__(self) -> int:
        return len(self.td)

    @overload
    def __getitem__(self, key: str | tuple[str, ...]) -> Tensor: ...
    @overload
    def __getitem__(self, key: int | slice | Sequence[int] | Tensor) -> TensorDictBase: ...
    def __getitem__(
        self, key: str | tuple[str, ...] | int | slice | Sequence[int] | Tensor
    ) -> Tensor | TensorDictBase:
        """Return one field, [N, ...], or the datapoints of some indices with all fields."""
        value: Tensor | TensorDictBase = self.td[key]
        return value

    @property
    def fields(self) -> list[str]:
        """The names of all fields, nested ones with dots, sorted."""
        return list(self._flat())

    def gather(self, ids: Tensor) -> TensorDictBase:
        """Return the datapoints of these indices int64 [*B], as a batch [*B]."""
        return self.td[ids]

    def take(self, size: int | None) -> TensorDictDataset:
        """Return the first ``size`` datapoints; all of them for None or when there are fewer."""
        return self if size is None or size >= len(self) else TensorDictDataset(self.td[:size])

    def to(self, device: str | torch.device, *, pin_memory: bool = False) -> TensorDictDataset:
        """Return the dataset on a device.

        ``pin_memory`` copies through page-locked memory to an accelerator, which is faster but
        needs the host memory twice during the copy.
        """
        if torch.device(device).type == "cpu" or not pin_memory:
            return TensorDictDataset(self.td.to(device))
        return TensorDictDataset(self.td.pin_memory().to(device, non_blocking=True))

    def _hash_content(self) -> str:
        digest = hashlib.sha256()
        for name, value in self._flat().items():
            value = value.detach().cpu().contiguous()
            header = json.dumps([name, str(value.dtype), list(value.shape)])
            digest.update(header.encode())
            digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def _save_data(self, file: Path) -> None:
        tensors = {name: value.cpu().contiguous().clone() for name, value in self._flat().items()}
        save_file(tensors, file)

    @classmethod
    def _load_data(cls, file: Path, size: int) -> Self:
        """Read tensors, memory-mapped."""
        try:
            tensors = load_file(file)
        except SafetensorError as error:
            raise ValueError(str(error)) from error
        return cls(TensorDict(tensors, batch_size=[size]).unflatten_keys("."))

    def _flat(self) -> dict[str, Tensor]:
        """Return all fields by dotted name, sorted."""
        flat = self.td.flatten_keys(".")
        return {name: flat[name] for name in sorted(flat.keys())}


class DataCursor:
    """Cursor over a dataset: each datapoint occurs once before any occurs twice.

    In random order, each epoch has a separate permutation, which depends only on the seed, the
    purpose (e.g. ``"train"``) and the epoch, so the cursor's full state is (epoch, position).
    """

    def __init__(
        self, size: int, seed: int, *, purpose: str = "train", shuffle: bool = True
    ) -> None:
        if size < 1:
            raise DataError(f"DataCursor: got size {size}, expected at least one datapoint.")
        self.size = size
        self.seed = seed
        self.purpose = purpose
        self.shuffle = shuffle
        self.epoch = 0
        self.position = 0
        self._order = self._permutation()

    def take(self, count: int) -> Tensor:
        """Return the next datapoint indices, int64 [count], continuing into further epochs."""
        parts = [torch.empty(0, dtype=torch.int64)]
        while count > 0:
            part = self._order[self.position : self.position + count]
            parts.append(part)
            count -= len(part)
            self.position += len(part)
            if self.position == self.size:
                self.epoch, self.position = self.epoch + 1, 0
                self._order = self._permutation()
        return torch.cat(parts)

    def state_dict(self) -> dict[str, int]:
        """Return the state: epoch and position."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved position.

        Raises
        ------
        StateError
            If the place doesn't exist in a dataset of this size.
        """
        epoch, position = state.get("epoch"), state.get("position")
        if (
            not isinstance(epoch, int)
            or not isinstance(position, int)
            or epoch < 0
            or not 0 <= position < self.size
        ):
            raise StateError(
                f"data cursor: got {state!r}, expected an epoch >= 0 and a position from 0 to"
                f" {self.size - 1}. The state belongs to another dataset."
            )
        self.epoch, self.position = epoch, position
        self._order = self._permutation()

    def _permutation(self) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.size)
        generator = torch_generator(self.seed, "data_cursor", self.epoch, self.purpose)
        return torch.randperm(self.size, generator=generator)
