"""Updates captured as CUDA graphs: equal to those that are not, and only where they can be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ratchet.agents.actor_critic import TURNS
from ratchet.agents.networks.layers import NormAndNoise
from tests.trainers.emulated_device import play_in_a_process
from trainers.tensordict.objectives.base import total_loss
from trainers.tensordict.objectives.ppo import ClippedPpoObjective
from trainers.tensordict.optimization import captured

SCRIPT = Path(__file__).with_name("capture_on_emulated_device.py")


@pytest.fixture
def capturable(tiny, monkeypatch):
    """Make a trainer whose updates could be captured if the CPU were a GPU."""
    monkeypatch.setattr(captured, "DEVICE_TYPE", "cpu")

    def make(**changes):
        return tiny.trainer(tiny.parameters(**changes))

    return make


def is_captured(trainer):
    return captured.can_capture(trainer, trainer.components)


@pytest.mark.slow
@pytest.mark.parametrize(
    "game",
    [
        "nip.clip",
        *(
            pytest.param(name, marks=pytest.mark.exhaustive)
            for name in ("debate.kl_penalty", "gymnasium.clip")
        ),
    ],
)
def test_graphs_repeat_updates_bit_for_bit(game):
    """With agents that learn alternately, annealed learning rates and states that are loaded."""
    (line,) = play_in_a_process(SCRIPT, game)
    assert int(line.removeprefix(game)) > 20


@pytest.mark.slow
def test_updates_that_wait_for_the_device_run_without_graphs():
    assert play_in_a_process(SCRIPT, "wait:nip.clip") == ["nip.clip 0"]


@pytest.mark.parametrize("protocol", ["nip", "debate"])
def test_padding_changes_no_gradient(tiny, protocol):
    trainer = tiny.trainer(tiny.parameters(interaction_protocol=protocol))
    trainer.initial_state()
    trainer.run_iterations(0, 1)
    parts, agents = trainer.components, trainer.combined_agents
    frames = parts.replay_buffer.frames[:12].clone()
    params = list(agents.parameters())

    def gradients():
        total = total_loss(parts.loss_module(frames))
        return torch.autograd.grad(total, params, allow_unused=True)

    expected = gradients()
    frames[TURNS] = agents.padded_turns(frames)
    padded = gradients()
    assert any(tensor is not None for tensor in padded)
    for one, other in zip(padded, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_agents_that_are_absent_from_a_minibatch_take_no_step(capturable, monkeypatch):
    monkeypatch.setattr(captured.CapturedUpdates, "_capture", lambda *_: None)

    def steps():
        trainer = capturable(rl__minibatch_size=2)
        trainer.initial_state()
        trainer.run_iterations(0, 1)
        return {name: float(each["step"]) for name, each in trainer.state.optimizer.items()}

    padded = steps()
    monkeypatch.setattr(captured, "DEVICE_TYPE", "none")
    assert padded == steps()
    assert max(padded.values()) < 2 * 32 / 2  # epochs × frames / minibatch


def test_only_updates_that_a_graph_can_repeat_are_captured(capturable):
    assert is_captured(capturable())
    assert is_captured(capturable(ppo__loss_type="kl_penalty"))
    assert not is_captured(capturable(trainer="reinforce"))
    assert not is_captured(capturable(trainer="spg"))
    assert not is_captured(capturable(rl__mixed_precision=True))
    assert not is_captured(capturable(agents__verifier__noise_sigma=0.1))
    assert not is_captured(capturable(agents__prover__transformer_dropout=0.1))
    assert not is_captured(capturable(callbacks=["gradient_statistics"]))


def test_custom_code_in_an_update_is_not_captured(capturable):
    class Custom(ClippedPpoObjective):
        pass

    class CustomHead(nn.Linear):
        pass

    trainer = capturable()
    parts = trainer.components
    parts.loss_module.__class__ = Custom
    assert not is_captured(trainer)
    parts.loss_module.__class__ = ClippedPpoObjective
    assert is_captured(trainer)
    body = trainer.combined_agents.agents["verifier"].body
    head, body.pooled_out = body.pooled_out, CustomHead(4, 4)
    assert not is_captured(trainer)
    body.pooled_out = head
    for module in (body, parts.loss_module):
        with module.register_forward_hook(lambda *_: None):
            assert not is_captured(trainer)
    with body.first_features.register_hook(lambda grad: grad):
        assert not is_captured(trainer)
    assert is_captured(trainer)


def test_the_optimizer_reads_its_own_rates_without_graphs(capturable, monkeypatch):
    trainer = capturable()
    trainer.initial_state()
    groups = trainer.components.optimizer.param_groups
    for group in groups:
        group["lr_on_device"] = torch.tensor(1.0)
    monkeypatch.setattr(captured, "_MOST_WEIGHTS", 0)
    trainer.run_iterations(0, 1)
    assert not any("lr_on_device" in group for group in groups)


@pytest.mark.parametrize(
    ("layer", "mixes"),
    [
        (nn.BatchNorm1d(2, track_running_stats=False), True),
        (nn.Dropout(0.1), True),
        (nn.Dropout(0.0), False),
        (nn.LayerNorm(2), False),
        (NormAndNoise(SimpleNamespace(noise_sigma=0, use_batch_norm=True), 2), False),
    ],
)
def test_layers_that_would_read_padding_are_not_captured(layer, mixes):
    assert captured._mixes_rows(nn.Sequential(nn.Linear(2, 2), layer)) is mixes
