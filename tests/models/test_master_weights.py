"""Masters collect updates that are smaller than the precision of the weights that compute."""

from __future__ import annotations

import torch

from ratchet.models.master_weights import MasterWeights


def test_small_updates_add_up_and_are_rounded():
    weight = torch.nn.Parameter(torch.full((3,), 0.02, dtype=torch.bfloat16))
    start = weight.detach().float()
    masters = MasterWeights([weight])
    (master,) = masters.weights
    assert master.dtype == torch.float32
    for _ in range(1000):
        weight.grad = torch.full_like(weight, 2.0)
        masters.take_gradients()
        assert weight.grad is None
        with torch.no_grad():
            master.sub_(1e-6 * torch.sign(master.grad))
        masters.round()
    torch.testing.assert_close(start - master.detach(), torch.full((3,), 1e-3), rtol=1e-3, atol=0)
    assert torch.equal(weight.detach(), master.detach().bfloat16())
    assert not torch.equal(weight.detach().float(), start)


def test_gradients_of_parts_are_added_in_float32():
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    masters = MasterWeights([weight])
    for gradient in (256.0, *[1.0] * 100):
        weight.grad = torch.full_like(weight, gradient)
        masters.take_gradients()
    assert masters.weights[0].grad.tolist() == [356.0] * 3, "in bfloat16 256 + 1 is 256"
    masters.round()
    assert masters.weights[0].grad is None


def test_float32_weights_are_their_own_masters():
    half = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
    whole = torch.nn.Parameter(torch.ones(2))
    masters = MasterWeights([whole, half])
    assert masters.weights[0] is whole
    assert list(masters.copies) == [1]
    whole.grad = torch.ones(2)
    masters.take_gradients()
    assert whole.grad is not None
    assert masters.weights[1].grad is None, "without a gradient"


def test_masters_are_read_from_a_state_or_from_the_weights():
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    masters = MasterWeights([weight])
    masters.read({0: torch.tensor([1.001, 2.0])})
    assert masters.weights[0].tolist() == torch.tensor([1.001, 2.0]).tolist()
    masters.read()
    assert masters.weights[0].tolist() == [1.0, 1.0]
