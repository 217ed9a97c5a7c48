"""Optimizer steps are torch's Adam's; batches are of like length and leave nothing out."""

from itertools import islice

import numpy as np
import torch

from ratchet.language_models.service.training.optimization import (
    Optimization,
    TokenSequence,
    batches_of_like_length,
    pad,
)


def test_steps_are_those_of_torchs_adam():
    start = [torch.randn(3, 4, generator=torch.Generator().manual_seed(n)) for n in range(2)]
    ours = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    theirs = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    optimization = Optimization(ours, 0.1, steps=20, warmup=4)
    adam = torch.optim.Adam(theirs, betas=(0.9, 0.98))
    for step in range(20):
        optimization.step(loss_of(ours))
        rate = 0.1 * min(1.0, (step + 1) / 4, max(0.1, 1 - step / 20))
        adam.param_groups[0]["lr"] = rate
        adam.zero_grad()
        loss_of(theirs).backward()
        torch.nn.utils.clip_grad_norm_(theirs, 1.0)
        adam.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def loss_of(parameters):
    return ((parameters[0] - parameters[1].sin()) ** 2).sum() + parameters[1].abs().sum()


def test_batches_hold_each_place_once_in_an_epoch_and_waste_little():
    lengths = np.random.default_rng(0).integers(10, 100, size=1024).tolist()
    batches = list(islice(batches_of_like_length(np.random.default_rng(1), lengths, 16), 64))
    assert sorted(place for batch in batches for place in batch) == list(range(1024))
    padded = sum(16 * max(lengths[place] for place in batch) for batch in batches)
    assert padded < 1.15 * sum(lengths)


def test_padding_is_on_the_right_and_weighs_nothing():
    ids, weights = pad([TokenSequence((5, 6, 7), (0.0, 1.0, 1.0)), TokenSequence((8,), (1.0,))])
    assert ids.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert weights.tolist() == [[0, 1, 1], [1, 0, 0]]
