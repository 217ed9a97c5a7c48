"""Which rows of a minibatch a process reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankShare:
    """What one of several processes does of the work of all; alone it does everything.

    Attributes
    ----------
    rank
        Which of them it is, from 0.
    world_size
        How many they are.
    """

    rank: int = 0
    world_size: int = 1

    def rows(self, count: int) -> list[int]:
        """Return the places of this process's rows, equally many in each.

        Behind the last one it comes again.
        """
        each = self.most(count)
        return [min(place, count - 1) for place in range(self.rank * each, (self.rank + 1) * each)]

    def most(self, count: int) -> int:
        """Return how many of so many things a process has at most."""
        return -(-count // self.world_size)

    def parts(self, count: int, size: int) -> Iterator[tuple[slice, bool]]:
        """Go through this process's parts of so many rows, and whether they count.

        All processes read equally many, since they gather weights together: who has none left
        reads one that does not count.
        """
        starts = range(0, count, size)
        for place in range(self.rank, self.most(len(starts)) * self.world_size, self.world_size):
            counts = place < len(starts)
            start = starts[place] if counts else 0
            yield slice(start, start + size), counts
