"""Random numbers from one stream per request: Philox-4×32-10 (Salmon et al. 2011).

Counter-based: a stream is a key and an index, and a batch takes a few array operations. Creating a
generator object per request would take as much time as its answer by a small model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint32)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)
_LARGEST = 2**64 - 1


def philox(counters: NDArray[np.uint32], keys: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Turn counters [4, N] into random words [4, N], with keys [2, N]."""
    x0, x2 = counters[0].astype(np.uint64), counters[2].astype(np.uint64)
    even = np.stack([x0, x2])  # words 0 and 2
    odd = np.stack([counters[1], counters[3]]).astype(np.uint64)  # words 1 and 3
    key = keys.astype(np.uint32)
    for _ in range(_ROUNDS):
        products = even * _MULTIPLIERS
        high, low = products >> _WORD, products & _LOW
        even = high[::-1] ^ odd ^ key
        odd = low[::-1]
        key = key + _WEYL
    return np.stack([even[0], odd[0], even[1], odd[1]]).astype(np.uint32)


def uniforms(seeds: Sequence[int], start: int, stop: int) -> NDArray[np.float64]:
    """Return numbers ``start`` to ``stop`` of each seed's stream: float64[seeds, stop − start].

    In [0, 1), with 53 random bits each.
    """
    first, last = start // 2, -(-stop // 2)  # two numbers per block
    rows, blocks = len(seeds), last - first
    counters = np.zeros((4, rows, blocks), np.uint32)
    counters[0] = np.arange(first, last)
    given = np.array([seed & _LARGEST for seed in seeds], np.uint64)
    words = np.stack([given & _LOW, given >> _WORD]).astype(np.uint32)
    keys = np.repeat(words, blocks, axis=1)
    drawn = philox(counters.reshape(4, -1), keys).astype(np.uint64)
    pairs = (drawn[::2] >> np.uint64(5)) * np.float64(2**26) + (drawn[1::2] >> np.uint64(6))
    numbers = (pairs / 2**53).reshape(2, rows, blocks)
    flat: NDArray[np.float64] = np.moveaxis(numbers, 0, -1).reshape(rows, 2 * blocks)
    return flat[:, start - 2 * first : stop - 2 * first]
