"""experiments/zero_knowledge.py: simulator and adversary follow the gradient of their likeness."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ratchet.algorithms.masks import masked_mean
from ratchet.protocols.zero_knowledge import ADVERSARIAL, SIMULATOR

FILE = Path(__file__).parents[2] / "experiments" / "zero_knowledge.py"


@pytest.fixture(scope="module")
def trainer(tiny):
    parameters = tiny.parameters(
        trainer=f"{FILE}:LikenessPpoTrainer",
        protocol_common__zero_knowledge=True,
        zk_protocol__simulator_reward_coefficient=1.0,
    )
    trainer = tiny.trainer(parameters)
    trainer.initial_state()
    trainer.run_iterations(0, 1)
    return trainer


@pytest.fixture
def losses(trainer):
    loss = trainer.components.loss_module
    loss.select_agents(None)
    return loss(trainer.components.replay_buffer.frames)


def test_the_losses_are_the_mean_reward_of_simulator_and_adversary(trainer, losses):
    frames = trainer.components.replay_buffer.frames
    logits = trainer.combined_agents.evaluate(frames, with_logits=True)
    state = frames.clone(recurse=False).update(logits)
    reward = trainer.protocol_handler.simulator_reward(state)
    acts = trainer.components.loss_module.learning_mask(frames)
    for name, sign in ((SIMULATOR, -1), (ADVERSARIAL, 1)):
        mask = acts[:, trainer.agent_names.index(name)]
        assert mask.any()
        torch.testing.assert_close(
            losses[f"loss_likeness_{name}"], sign * masked_mean(reward, mask)
        )


@pytest.mark.parametrize("name", [SIMULATOR, ADVERSARIAL])
def test_each_loss_moves_its_own_agent_only(trainer, losses, name):
    parameters = dict(trainer.combined_agents.named_parameters())
    gradients = torch.autograd.grad(
        losses[f"loss_likeness_{name}"], parameters.values(), retain_graph=True, allow_unused=True
    )
    moved = {
        path.split(".")[1]
        for path, gradient in zip(parameters, gradients, strict=True)
        if gradient is not None and gradient.abs().sum() > 0
    }
    assert moved == {name}


def test_a_frozen_agent_has_no_loss(trainer):
    loss = trainer.components.loss_module
    loss.select_agents([SIMULATOR])
    found = loss(trainer.components.replay_buffer.frames)
    loss.select_agents(None)
    assert f"loss_likeness_{SIMULATOR}" in found
    assert f"loss_likeness_{ADVERSARIAL}" not in found
