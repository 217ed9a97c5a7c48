"""Rows of a minibatch that a process reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankShare:
    """The part of the work of one of several processes; a single process does all of it.

    Attributes
    ----------
    rank
        The index of the process, from 0.
    world_size
        The number of processes.
    """

    rank: int = 0
    world_size: int = 1

    def rows(self, count: int) -> list[int]:
        """Return the indices of this process's rows, equally many in each process.

        Padded with the last index.
        """
        each = self.most(count)
        return [min(place, count - 1) for place in range(self.rank * each, (self.rank + 1) * each)]

    def most(self, count: int) -> int:
        """Return the largest number of ``count`` items per process."""
        return -(-count // self.world_size)

    def parts(self, count: int, size: int) -> Iterator[tuple[slice, bool]]:
        """Iterate over this process's slices of ``count`` rows, and whether they count.

        All processes read the same number, since they gather weights together: padding slices do
        not count.
        """
        starts = range(0, count, size)
        for place in range(self.rank, self.most(len(starts)) * self.world_size, self.world_size):
            counts = place < len(starts)
            start = starts[place] if counts else 0
            yield slice(start, start + size), counts
