"""Mixed precision, and the accelerator where there is one, through the same code."""

from __future__ import annotations

import math

import pytest
import torch

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import ParameterError
from ratchet.scenarios import build_scenario_instance
from trainers.base import deterministic_kernels
from trainers.compatibility import check_combination
from trainers.registry import build_trainer

ON_CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
)


def control(**rl):
    return HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset="CartPole-v1",
        gymnasium={"num_envs": 4, "num_test_episodes": 6, "max_episode_steps": 30},
        agents={"_default": {"hidden_sizes": [16]}},
        rl={"frames_per_batch": 128, "minibatch_size": 64, "num_iterations": 4, **rl},
    )


def make(hyper_params, device="cpu"):
    settings = ExperimentSettings(device=device)
    instance = build_scenario_instance(hyper_params, settings)
    return build_trainer(hyper_params, instance, settings)


@pytest.mark.parametrize("game", ["control", "messages"])
@pytest.mark.parametrize("device", ["cpu", ON_CUDA])
def test_mixed_precision_trains_whole_weights_nearly_as_without(tiny, game, device):
    """Losses are rounded to bfloat16, the weights and what the optimizer keeps are not."""
    losses = {}
    for mixed in (False, True):
        if game == "control":
            trainer = make(control(mixed_precision=mixed), device)
        else:
            trainer = tiny.trainer(tiny.parameters(rl__mixed_precision=mixed), device=device)
        trainer.initial_state()
        metrics = trainer.run_iterations(0, 2)[0]
        assert all(math.isfinite(value) for value in metrics.values())
        state = trainer.state
        trees = [*state.agents.values(), *state.optimizer.values()]
        assert {t.dtype for tensors in trees for t in tensors.values()} == {torch.float32}
        losses[mixed] = metrics["loss_critic"]
    assert losses[True] != losses[False]
    assert losses[True] == pytest.approx(losses[False], rel=0.1)


def test_mixed_precision_is_part_of_the_key_of_training_alone():
    plain, mixed = control(), control(mixed_precision=True)
    trainer = type(make(plain))
    for stage, differs in (("initial_state", False), ("train", True), ("test", False)):
        one, other = (trainer.stage_key_parameters(h, stage) for h in (plain, mixed))
        assert (one != other) == differs, stage


@pytest.mark.parametrize("device", [ON_CUDA])
@pytest.mark.parametrize("dataset", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1"])
def test_environments_train_on_the_accelerator_and_their_states_load_anywhere(device, dataset):
    hyper_params = control().replace({"dataset": dataset})
    trainer = make(hyper_params, device)
    trainer.initial_state()
    trainer.run_iterations(0, 2)
    state = trainer.state
    tensors = [
        t for tree in (state.agents, state.episodes) for d in tree.values() for t in d.values()
    ]
    assert all(tensor.device.type == "cpu" for tensor in tensors)
    elsewhere = make(hyper_params)
    elsewhere.state = state
    elsewhere.run_iterations(2, 3)
    there = trainer.run_test().metrics["agent.mean_episode_reward"]
    assert math.isfinite(there)


@pytest.mark.parametrize("device", [ON_CUDA])
def test_a_resumed_run_on_the_accelerator_is_an_uninterrupted_one(tiny, device):
    """Sums of gradients are in a fixed order, unlike with torch's defaults."""
    hyper_params = tiny.parameters(rl__frames_per_batch=256)
    whole, cut, resumed = (tiny.trainer(hyper_params, device=device) for _ in range(3))
    for trainer in (whole, cut):
        trainer.initial_state()
    metrics = whole.run_iterations(0, 3)
    assert cut.run_iterations(0, 1) == metrics[:1]
    resumed.state = cut.state
    assert resumed.run_iterations(1, 3) == metrics[1:]
    assert resumed.state == whole.state


def test_kernels_are_deterministic_on_accelerators_alone_and_only_during_stages(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")

    def modes():
        algorithms = torch.are_deterministic_algorithms_enabled()
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        return algorithms, warns, torch.backends.cuda.cudnn_sdp_enabled()

    before = modes()
    for settings in ({}, {"device": "cuda", "deterministic": False}):
        with deterministic_kernels(ExperimentSettings(**settings)):
            assert modes() == before
    settings = ExperimentSettings(device="cuda")
    with deterministic_kernels(settings):
        assert modes() == (True, True, False)
        with deterministic_kernels(settings, strict=True):
            assert modes() == (True, False, False)
        assert modes() == (True, True, False)
    assert modes() == before


@pytest.mark.slow
@pytest.mark.exhaustive
def test_compiled_losses_learn_as_recorded_ones_and_each_process_the_same(tmp_path):
    """Minibatches of 43 and 42 frames: one version per size, regardless of earlier ones."""
    shapes = {"frames_per_batch": 128, "minibatch_size": 43}
    recorded = make(control(**shapes))
    recorded.initial_state()
    expected = recorded.run_iterations(0, 2)
    whole = make(control(compile_losses=True, **shapes))
    state = whole.initial_state()
    found = whole.run_iterations(0, 2)
    assert whole.components.loss_module.is_compiled
    for one, other in zip(found, expected, strict=True):
        for name in ("loss_critic", "loss_objective", "grad_norm"):
            assert one[name] == pytest.approx(other[name], rel=1e-2, abs=1e-4), name
    torch.compiler.reset()
    cut = make(control(compile_losses=True, **shapes))
    cut.state = state
    again = cut.run_iterations(0, 1)
    torch.compiler.reset()
    resumed = make(control(compile_losses=True, **shapes))
    resumed.state = cut.state
    again += resumed.run_iterations(1, 2)
    assert again == found
    assert resumed.state == whole.state


def test_losses_that_cannot_be_compiled_are_refused_beforehand(tiny):
    hyper_params = tiny.parameters(rl__compile_losses=True)
    with pytest.raises(ParameterError, match=r"rl\.compile_losses: got true .*scenario gymnasium"):
        check_combination(hyper_params)
    with pytest.raises(ParameterError, match="only where they act"):
        _ = tiny.trainer(hyper_params).components
