"""SAC with offline frames; unsupported library options, and their messages."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from ratchet import HyperParameters
from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import load_experiment
from ratchet.plugins import paths_from
from trainers.registry import trainer_class

NAME = "offline_to_online"


def data_of(path):
    return {"replay_buffer__offline_dataset": str(path)}


def key_of(params):
    return trainer_class(params, None).stage_key_parameters(params, "train")


@pytest.mark.slow
def test_less_and_less_of_a_sample_is_of_others(small):
    trainer = small.make(NAME, trainer__total_frames=96)
    trainer.initial_state()
    mixture = trainer.torchrl_trainer._modules["replay_buffer"].replay_buffer
    shares = [mixture.offline_fraction]
    for iteration in range(2):
        metrics = trainer.run_iterations(iteration, iteration + 1)[0]
        shares.append(mixture.offline_fraction)
    assert shares == [0.5, 0.25, 0.0]
    assert len(mixture.offline_buffer) == 30
    assert metrics["write_count"] == 72  # before the last batch
    resumed = small.make(NAME, trainer__total_frames=96)
    resumed.state = trainer.state
    again = resumed.torchrl_trainer._modules["replay_buffer"].replay_buffer
    assert again.offline_fraction == 0.0


@pytest.mark.slow
def test_frames_of_a_stored_stage_are_frames_to_begin_with(small, tmp_path):
    before = small.trained("sac", 1)
    before.save_state(tmp_path, "key")
    (frames,) = tmp_path.glob("*.frames.safetensors")
    trainer = small.trained(NAME, 1, **data_of(frames))
    mixture = trainer.torchrl_trainer._modules["replay_buffer"].replay_buffer
    assert len(mixture.offline_buffer) == 48


@pytest.mark.slow
def test_keys_have_the_content_of_frames_and_the_length_of_their_decline(small, tmp_path):
    first, copy, other = (tmp_path / f"{name}.safetensors" for name in ("first", "copy", "other"))
    small.write_frames(first)
    small.write_frames(copy)
    small.write_frames(other, number=29)
    keys = [key_of(small.parameters(NAME, **data_of(path))) for path in (first, copy, other)]
    assert keys[0] == keys[1] != keys[2]
    assert str(tmp_path) not in str(keys[0])
    with paths_from(tmp_path):
        assert key_of(small.parameters(NAME, **data_of("copy.safetensors"))) == keys[0]
    asked = data_of(first)
    longer = key_of(small.parameters(NAME, trainer__total_frames=960, **asked))
    said = key_of(small.parameters(NAME, trainer__anneal_frames=None, **asked))
    fixed = [
        key_of(small.parameters(NAME, trainer__anneal_frames=48, trainer__total_frames=n, **asked))
        for n in (96, 960)
    ]
    assert longer != keys[0] == said
    assert fixed[0] == fixed[1] != keys[0]


@pytest.mark.slow
def test_what_is_wrong_with_frames_is_said(small, tmp_path):
    path = tmp_path / "frames.safetensors"
    small.write_frames(path)
    save_file({k: v for k, v in load_file(path).items() if k != "action"}, path)
    broken = tmp_path / "broken.safetensors"
    broken.write_text("no frames")
    for given, message in (
        (None, "offline_dataset: got None, expected the initial data"),
        (tmp_path / "none.safetensors", "none.safetensors does not exist, expected"),
        (path, r"\['action'\] are missing"),
        (broken, "cannot be read as safetensors"),
    ):
        changes = {"replay_buffer__offline_dataset": None if given is None else str(given)}
        trainer = small.make(NAME, **changes)
        with pytest.raises(ParameterError, match=message):
            trainer.initial_state()


@pytest.mark.parametrize(
    ("name", "advice"),
    [("grpo", "trainer: pure_text_grpo"), ("dreamer_v3", "optimizer and optimization stepper")],
)
def test_algorithms_that_are_not_run_say_what_to_do(tmp_path, name, advice):
    params = HyperParameters(scenario="gymnasium", dataset="CartPole-v1", trainer=f"torchrl_{name}")
    with pytest.raises(ParameterError, match=f"got 'torchrl_{name}'.*{advice}"):
        trainer_class(params, None)
    path = tmp_path / "library.yaml"
    path.write_text(f"defaults:\n  - trainer@trainer: {name}\n  - _self_\n")
    with pytest.raises(ParameterError, match=f"got 'torchrl_{name}'.*{advice}"):
        load_experiment(path)


def test_what_an_optimization_stepper_owns_resumes(small):
    """DreamerV3's optimizer in a stepper, whose state lies nowhere else in the trainer."""
    from torchrl.trainers import MixedPrecisionOptimizationStepper
    from torchrl.trainers.algorithms import DreamerV3Optimizer

    def made():
        trainer = small.build(small.custom_parameters())
        build = trainer.build_trainer

        def build_trainer():
            library = build()
            library._optimizer_ops.clear()
            parameters = library.loss_module.parameters()
            stepper = MixedPrecisionOptimizationStepper(
                DreamerV3Optimizer(parameters, lr=1e-2, warmup_steps=8)
            )
            library.optimizer, library.optimization_stepper = None, stepper
            library._modules.pop("optimizer", None)
            stepper.register(library)
            return library

        trainer.build_trainer = build_trainer
        return trainer

    whole, cut, resumed = made(), made(), made()
    for trainer in (whole, cut):
        trainer.initial_state()
    metrics = whole.run_iterations(0, 3)
    cut.run_iterations(0, 1)
    resumed.state = cut.state
    assert resumed.run_iterations(1, 3) == metrics[1:]
    assert resumed.state == whole.state
    momentum = [v for k, v in whole.state.tensors.items() if "momentum" in k]
    assert any(torch.any(value != 0) for value in momentum)
