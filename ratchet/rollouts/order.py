"""In which order datapoints are played: a pure function of the position, so nothing to save."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ratchet.errors import DataError
from ratchet.seeding import numpy_generator

Ids: TypeAlias = npt.NDArray[np.int64]


class DataOrder:
    """An endless order of datapoints: every one once before any comes twice.

    ``purpose`` keeps orders with the same seed apart, e.g. ``"train"``.

    Each epoch has a permutation of its own, which depends on nothing but the seed, the purpose
    and the epoch.

    Raises
    ------
    DataError
        If there is no datapoint.
    """

    def __init__(
        self, seed: int, size: int, *, purpose: str = "train", shuffle: bool = True
    ) -> None:
        if size < 1:
            raise DataError(f"DataOrder: got size {size}, expected at least one datapoint.")
        self.seed = seed
        self.size = size
        self.purpose = purpose
        self.shuffle = shuffle

    def take(self, start: int, count: int) -> Ids:
        """Return the datapoints at positions ``start`` to ``start + count``, int64 [count].

        Raises
        ------
        DataError
            If a number is negative.
        """
        if start < 0 or count < 0:
            raise DataError(
                f"DataOrder.take: got start {start} and count {count}, expected none negative."
            )
        epoch, offset = divmod(start, self.size)
        parts: list[Ids] = [np.empty(0, dtype=np.int64)]
        while count > 0:
            part = self._permutation(epoch)[offset : offset + count]
            parts.append(part)
            count -= len(part)
            epoch, offset = epoch + 1, 0
        return np.concatenate(parts)

    def _permutation(self, epoch: int) -> Ids:
        if not self.shuffle:
            return np.arange(self.size, dtype=np.int64)
        generator = numpy_generator(self.seed, "data_order", epoch, self.purpose)
        return generator.permutation(self.size).astype(np.int64, copy=False)
