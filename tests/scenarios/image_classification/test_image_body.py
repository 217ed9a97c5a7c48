"""Bodies align pixels, messages and latent pixels."""

from __future__ import annotations

import pytest
import torch

from ratchet.agents.building import AgentPlan
from ratchet.agents.parts import AgentInput
from ratchet.protocols.registry import build_protocol_handler
from ratchet.scenarios.image_classification.agents import BLOCKS, ImageAgentBuilder, make_conv2d

ROWS, GRID = 5, (4, 4)
POINTWISE = {"agents___default__kernel_size": 1, "agents___default__num_blocks_per_group": 2}


def make_body(hyper_params, name="verifier", read=("pooled", "symbols")):
    handler = build_protocol_handler(hyper_params)
    plan = AgentPlan(hyper_params, handler, name, hyper_params.agents[name])
    return ImageAgentBuilder().build_body(plan, plan.init("body"), read)


def make_inputs(rounds=4, positions=1, linear=None):
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(ROWS, *shape, generator=generator)

    return AgentInput(
        round=torch.zeros(ROWS, dtype=torch.int64),
        history=draw(rounds, 1, positions, 16),
        message=draw(1, positions, 16),
        data={"image": draw(1, 8, 8)},
        linear_history=None if linear is None else draw(rounds, 1, linear),
    )


def changed_latent_pixels(body, inputs, change):
    """Return which latent pixels, [4, 4], depend on a change of the inputs."""
    before = body._latent_pixels(inputs)
    change(inputs)
    after = body._latent_pixels(inputs)
    return (before != after).any(-1).any(0).view(GRID)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_pixel_changes_the_latent_pixel_over_it_only(image_parameters, block):
    """With kernels of one pixel, no other value may change."""
    body = make_body(image_parameters(**POINTWISE, agents___default__building_block_type=block))
    for row, column in ((0, 0), (3, 6), (7, 5)):
        inputs = make_inputs()

        def change(inputs, row=row, column=column):
            inputs.data["image"][:, 0, row, column] += 9

        expected = torch.zeros(GRID, dtype=torch.bool)
        expected[row // 2, column // 2] = True
        assert torch.equal(changed_latent_pixels(body, inputs, change), expected)


@pytest.mark.parametrize("what", ["history", "message"])
def test_a_message_changes_the_latent_pixel_that_it_names_only(image_parameters, what):
    body = make_body(image_parameters(**POINTWISE))
    for symbol in (0, 6, 15):
        inputs = make_inputs()

        def change(inputs, symbol=symbol):
            getattr(inputs, what)[..., symbol] += 9

        expected = torch.zeros(16, dtype=torch.bool)
        expected[symbol] = True
        changed = changed_latent_pixels(body, inputs, change)
        assert torch.equal(changed, expected.view(GRID))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_channels_double_and_the_grid_halves_whatever_the_stride(
    image_parameters, block, stride, groups
):
    body = make_body(
        image_parameters(
            agents___default__building_block_type=block,
            agents___default__stride=stride,
            agents___default__kernel_size=3,
            image_classification__num_block_groups=groups,
        )
    )
    symbols = 16 // 4 ** (groups - 1)
    inputs = make_inputs()
    inputs.history, inputs.message = inputs.history[..., :symbols], inputs.message[..., :symbols]
    latent = body._latent_pixels(inputs)
    assert latent.shape == (ROWS, symbols, 2 * 2**groups)
    out = body(inputs)
    assert out.pooled.shape == (ROWS, 4)
    assert out.symbols.shape == (ROWS, symbols, 4)


def test_a_convolution_is_orthogonal_over_all_pixels_under_its_kernel(image_parameters):
    hyper_params = image_parameters()
    handler = build_protocol_handler(hyper_params)
    plan = AgentPlan(hyper_params, handler, "prover", hyper_params.agents["prover"])
    weight = make_conv2d(plan.init("body"), 3, 8, 3).weight.flatten(1)
    assert torch.allclose(weight @ weight.T, torch.eye(8), atol=1e-5)


def test_a_body_makes_only_what_is_read(image_parameters):
    hyper_params = image_parameters(include_linear_message_space=True)
    whole = make_body(hyper_params, read=("pooled",))(make_inputs(linear=2))
    symbols = make_body(hyper_params, read=("symbols",))(make_inputs(linear=2))
    assert whole.symbols is None
    assert symbols.pooled is None


def test_linear_messages_are_heard(image_parameters):
    body = make_body(image_parameters(include_linear_message_space=True))
    inputs = make_inputs(linear=2)
    before = body(inputs)
    inputs.linear_history = inputs.linear_history + 1
    after = body(inputs)
    assert not torch.equal(before.pooled, after.pooled)
    assert not torch.equal(before.symbols, after.symbols)
