"""Our Adam and clipping take the very steps that torch's take."""

import copy

import pytest
import torch
from torch import nn

from ratchet.fast.adam import FusedAdam, clip_gradients


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Linear(3, 3))


def groups(model):
    return [
        {"params": list(model[0].parameters()), "lr": 0.1},
        {"params": [*model[2].parameters(), *model[3].parameters()], "lr": 0.003},
    ]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("max_norm", [0.01, 1.0, 1e6])
def test_fifty_steps_are_torchs(max_norm):
    ours, theirs = network(), copy.deepcopy(network())
    adam = FusedAdam(groups(ours), lr=0.5)
    reference = torch.optim.Adam(groups(theirs), lr=0.5, fused=True)
    for step in range(50):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
        norms = []
        for model, optimizer in ((ours, adam), (theirs, reference)):
            model[3].requires_grad_(step % 3 > 0)  # some are frozen now and then
            optimizer.zero_grad(set_to_none=True)
            model(x).square().sum().backward()
            params = list(model.parameters())
            clip = clip_gradients if model is ours else nn.utils.clip_grad_norm_
            norms.append(clip(params, max_norm))
            optimizer.step()
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        torch.testing.assert_close(*norms, rtol=1e-6, atol=0)
        if max_norm == 1e6:  # never clipped
            assert same(ours.parameters(), theirs.parameters())
        torch.testing.assert_close(
            list(ours.parameters()), list(theirs.parameters()), rtol=1e-4, atol=1e-6
        )
    kept = [adam.state[param] for param in ours.parameters()]
    expected = [reference.state[param] for param in theirs.parameters()]
    for mine, other in zip(kept, expected, strict=True):
        assert mine.keys() == other.keys()
        assert torch.equal(mine["step"], other["step"])
        torch.testing.assert_close(list(mine.values()), list(other.values()), rtol=1e-4, atol=1e-6)


def test_a_state_put_in_place_of_another_counts_from_there():
    model = network()
    adam = FusedAdam(groups(model), lr=0.5)
    for _ in range(3):
        model(torch.ones(2, 5)).sum().backward()
        adam.step()
    saved = {param: {k: v.clone() for k, v in kept.items()} for param, kept in adam.state.items()}
    before = [param.detach().clone() for param in model.parameters()]

    def go_on():
        model(torch.ones(2, 5)).sum().backward()
        adam.step()
        return [param.detach().clone() for param in model.parameters()]

    adam.zero_grad()
    first = go_on()
    with torch.no_grad():
        for param, value in zip(model.parameters(), before, strict=True):
            param.copy_(value)
    adam.state.clear()
    adam.state.update(saved)
    adam.zero_grad()
    assert same(first, go_on())
    assert all(kept["step"] == 4 for kept in adam.state.values())


def test_without_gradients_nothing_is_clipped_and_nothing_moves():
    model = network()
    before = [param.clone() for param in model.parameters()]
    assert clip_gradients(model.parameters(), 1.0) == 0
    FusedAdam(groups(model), lr=0.5).step()
    assert same(before, model.parameters())
