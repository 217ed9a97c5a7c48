"""Parts of a minibatch that are read one at a time, in one process or several.

Each process has some of the rows, and reads them in parts; blocks of ``together`` successive rows
stay together. Results are parts of rows, and whether they count (:meth:`RankShare.pad_parts`).
"""

from __future__ import annotations

from collections.abc import Sequence

from trainers.language.ranks.rows import RankShare, Rows


def split_rows(
    num_rows: int, share: RankShare, *, together: int = 1, max_rows: int | None = None
) -> list[tuple[Rows, bool]]:
    """Split rows in their order, ``max_rows`` (rounded up to blocks) at a time; by default all."""
    share_size = together * share.most(-(-num_rows // together))
    size = share_size if max_rows is None else together * -(-max_rows // together)
    rows = range(num_rows)
    starts = range(0, share_size * share.world_size, share_size)
    shares = [rows[start : start + share_size] for start in starts]
    parts = [[each[start : start + size] for start in range(0, len(each), size)] for each in shares]
    return share.pad_parts(parts, rows[:together])


def split_tokens(
    lengths: Sequence[int], max_tokens: int, share: RankShare, *, together: int = 1
) -> list[tuple[Rows, bool]]:
    """Split rows of these lengths, the longest first, ``max_tokens`` with padding at a time.

    They keep their order if a process can read all of its rows together. Longer blocks are separate
    parts.
    """
    rows = range(len(lengths))
    blocks = [rows[start : start + together] for start in rows[::together]]

    def tokens(block: Rows) -> int:
        return together * max(lengths[row] for row in block)

    if share.most(len(blocks)) * max(map(tokens, blocks)) <= max_tokens:
        return split_rows(len(rows), share, together=together)
    blocks.sort(key=tokens, reverse=True)  # stable
    parts: list[list[Rows]] = []
    for rank in range(share.world_size):
        blocks_left, of_rank = blocks[rank :: share.world_size], list[Rows]()
        while blocks_left:
            size = max(1, max_tokens // tokens(blocks_left[0]))
            of_rank.append([row for block in blocks_left[:size] for row in block])
            blocks_left = blocks_left[size:]
        parts.append(of_rank)
    return share.pad_parts(parts, blocks[-1])
