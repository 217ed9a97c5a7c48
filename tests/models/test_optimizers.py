"""Optimizer steps equal those of torch; batches are of like length and complete."""

import weakref
from itertools import islice

import numpy as np
import torch

from ratchet.models.optimizers import Adam, ScheduledAdam
from ratchet.models.supervision import TokenSequence, batches_of_like_length, pad


def test_steps_are_those_of_torchs_adam():
    start = [torch.randn(3, 4, generator=torch.Generator().manual_seed(n)) for n in range(2)]
    ours = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    theirs = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    adam = ScheduledAdam(ours, 0.1, steps=20, warmup=4)
    torchs = torch.optim.Adam(theirs, betas=(0.9, 0.98))
    for step in range(20):
        adam.step(loss_of(ours))
        rate = 0.1 * min(1.0, (step + 1) / 4, max(0.1, 1 - step / 20))
        torchs.param_groups[0]["lr"] = rate
        torchs.zero_grad()
        loss_of(theirs).backward()
        torch.nn.utils.clip_grad_norm_(theirs, 1.0)
        torchs.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_decoupled_weight_decay_is_that_of_torchs_adamw():
    start = torch.randn(5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours, theirs = start.clone(), torch.nn.Parameter(start.clone())
    adam = Adam([ours])
    assert not vars(adam).keys() & {"means", "squares"}  # sampling needs no moments
    torchs = torch.optim.AdamW([theirs], eps=1e-6)
    for step in range(6):
        settings = {"learning_rate": 0.1 / (step + 1), "weight_decay": 0.1 * (step % 2)}
        gradient = torch.sin(ours + step)
        adam.step([gradient], beta1=0.8, beta2=0.9, eps=1e-6, **settings)
        group = torchs.param_groups[0]
        group |= {"lr": settings["learning_rate"], "weight_decay": settings["weight_decay"]}
        group["betas"], theirs.grad = (0.8, 0.9), gradient
        torchs.step()
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-12)


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


def test_gradients_are_freed_before_the_step(monkeypatch):
    weight = torch.nn.Parameter(torch.ones(3))
    adam, gradients, freed = ScheduledAdam([weight], 0.1, steps=1, warmup=1), [], []

    def grad(*arguments, **options):
        computed = autograd(*arguments, **options)
        gradients.extend(map(weakref.ref, computed))
        return computed

    def step(self, clipped, **settings):
        freed.extend(gradient() is None for gradient in gradients)

    autograd = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", grad)
    monkeypatch.setattr(Adam, "step", step)
    adam.step(weight.square().sum())
    assert freed == [True]
