"""A small model with large random weights, whose answers end at uneven lengths."""

import numpy as np

from ratchet.language_models.engines.rollouts import SampleRequest
from ratchet.language_models.local.small_models import SmallModelShape, make_small_model

ALPHABET = "abcdefgh"
USER, END, ASSISTANT, FIRST = 4, 1, 5, 7


def write_small_model(folder, **figures):
    shape = SmallModelShape(**{"d_model": 16, "heads": 2, "init_scale": 0.35, **figures})
    make_small_model(folder, alphabet=ALPHABET, shape=shape, seed=3)
    return folder


def prompts(count, longest=9, seed=0):
    rng = np.random.default_rng(seed)
    words = [rng.integers(FIRST, FIRST + 8, rng.integers(1, longest)) for _ in range(count)]
    return [(USER, *word.tolist(), END, ASSISTANT) for word in words]


def requests(prompt_count=6, group=4, most=40, **settings):
    rng = np.random.default_rng(1)
    return [
        SampleRequest(prompt, int(rng.integers(1, most)), seed=100 * place + k, **settings)
        for place, prompt in enumerate(prompts(prompt_count))
        for k in range(group)
    ]
