"""The streams are Philox-4×32-10's."""

import numpy as np
import pytest

from ratchet.language_models.engines.sampling import philox, philox_uniforms

# the reference values of Salmon et al.'s Random123
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text):
    return np.array([[int(word, 16)] for word in text.split()], np.uint32)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter, key, answer):
    assert philox(words(counter), words(key)).tolist() == words(answer).tolist()


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 7), (3, 4), (5, 64), (32, 64)])
def test_a_piece_of_a_stream_is_the_same_whatever_is_drawn_beside_it(start, stop):
    seeds = [0, 5, 2**40 + 7, 2**63 - 1]
    whole = philox_uniforms(seeds, 0, 64)
    assert np.array_equal(philox_uniforms(seeds, start, stop), whole[:, start:stop])
    assert np.array_equal(philox_uniforms(seeds[2:3], start, stop), whole[2:3, start:stop])


def test_numbers_are_spread_evenly_and_streams_differ():
    drawn = philox_uniforms(range(400), 0, 250)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert len(np.unique(drawn)) == drawn.size
    counts = np.histogram(drawn, bins=50, range=(0, 1))[0]
    expected = drawn.size / 50
    assert float(((counts - expected) ** 2 / expected).sum()) < 100  # χ², 49 degrees of freedom
    assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 0.01
