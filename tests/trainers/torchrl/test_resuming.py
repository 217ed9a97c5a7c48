"""Interrupted and resumed is uninterrupted, bit for bit: weights, buffers, counters, metrics."""

from __future__ import annotations

import pytest
import torch

from ratchet.errors import CheckPointNotFoundError, StateError
from trainers.staged import runs_in_stages
from trainers.torchrl.state import TorchRlState

FAST = ["dqn"]
SLOW = ["ppo", "sac", "a2c", "reinforce", "td3", "ddpg", "iql", "cql", "offline_to_online"]
ALGORITHMS = [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def steps(trainer, store, cuts):
    """Run stages like the pipeline: load, run, save, each with a new trainer."""
    start, metrics = cuts[0], []
    for stop in cuts[1:]:
        made = trainer()
        made.load_state(store / f"{start}", f"{start}", lambda key: store / key)
        metrics += made.run_iterations(start, stop)
        made.save_state(store / f"{stop}", f"{stop}")
        made.close()
        start = stop
    return TorchRlState.load(store / f"{start}", lambda key: store / key), metrics


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_training_in_stages_is_training_in_one_go(small, algorithm, tmp_path):
    whole = small.trained(algorithm, 4)
    first = small.make(algorithm)
    first.initial_state()
    first.save_state(tmp_path / "0", "0")
    state, metrics = steps(lambda: small.make(algorithm), tmp_path, [0, 1, 4])
    assert state == whole.state
    assert metrics == whole.metrics
    assert state != first.state
    kept = 24 if algorithm in small.ON_POLICY else 100
    # 4 × 48 frames were collected; offline frames are not in the state
    assert {b.size for b in state.buffers.values()} == {kept}


@pytest.mark.slow
def test_a_trainer_that_has_done_other_things_goes_on_all_the_same(small):
    """Nothing may depend on what ran before in the process."""
    whole = small.trained("dqn", 3)
    other = small.trained("dqn", 2)
    at_two = other.state
    other.run_test()
    torch.manual_seed(77)
    other.run_iterations(2, 3)
    assert other.state == whole.state
    other.state = at_two
    other.run_iterations(2, 3)
    assert other.state == whole.state


@pytest.mark.slow
def test_another_seed_and_another_process_seed_differ_as_they_should(small):
    one, same = small.trained("ppo", 1), small.trained("ppo", 1)
    other = small.trained("ppo", 1, seed=7)
    assert one.state == same.state != other.state
    assert one.metrics == same.metrics


@pytest.mark.slow
@pytest.mark.parametrize("transform", ["VecNormV2", "ObservationNorm"])
def test_running_means_of_observations_resume_and_serve_in_tests(small, transform):
    from torchrl.envs import transforms

    def made():
        trainer = small.build(small.custom_parameters())
        build = trainer.build_trainer

        def build_trainer():
            library = build()
            environment = library.collector.env
            arguments = {"in_keys": ["observation"]}
            if transform == "ObservationNorm":
                arguments |= {"loc": torch.ones(4), "scale": torch.full((4,), 2.0)}
            environment.append_transform(getattr(transforms, transform)(**arguments))
            return library

        trainer.build_trainer = build_trainer
        return trainer

    whole, cut, resumed = made(), made(), made()
    for trainer in (whole, cut):
        trainer.initial_state()
    metrics = whole.run_iterations(0, 2)
    cut.run_iterations(0, 1)
    resumed.state = cut.state
    assert resumed.run_iterations(1, 2) == metrics[1:]
    assert resumed.state == whole.state
    assert any("transform" in name for name in whole.state.tensors)


def test_running_means_begin_with_the_same_observations_and_resume(small):
    """Collectors reset their environment on creation, before it can be seeded."""
    norm = {"_target_": "torchrl.envs.transforms.VecNormV2", "in_keys": ["observation"]}
    transforms = ["${double_to_float}", "${step_counter}", "${reward_sum}", "${norm}"]

    def made(**changes):
        return small.make(
            "ppo",
            training_env__transform__transforms=transforms,
            torchrl__config__norm=norm,
            **changes,
        )

    whole, cut, resumed, other = made(), made(), made(), made(seed=7)
    first = whole.initial_state()
    assert cut.initial_state() == first
    assert other.initial_state() != first
    metrics = whole.run_iterations(0, 2)
    assert cut.run_iterations(0, 1) == metrics[:1]
    resumed.state = cut.state
    assert resumed.run_iterations(1, 2) == metrics[1:]
    assert resumed.state == whole.state


@pytest.mark.slow
def test_a_stopped_trainer_stays_stopped(small):
    settings = {"torchrl.evaluation_period": 1, "torchrl.evaluation_episodes": 1}
    changes = {name.replace(".", "__"): value for name, value in settings.items()}
    trainer = small.trained("ppo", 3, torchrl__stop_at_return=1.0, **changes)
    assert trainer.metrics[0]["r_evaluation"] >= 1.0
    assert trainer.metrics[1:] == [{}, {}]
    resumed = small.make("ppo", torchrl__stop_at_return=1.0, **changes)
    resumed.state = trainer.state
    assert resumed.run_iterations(3, 4) == [{}]


@pytest.mark.slow
def test_the_best_weights_are_kept_resumed_and_tested(small):
    changes = {"torchrl__evaluation_period": 1, "torchrl__evaluation_episodes": 1}
    changes |= {"torchrl__keep_best": True, "optimizer__lr": 0.005}
    trainer = small.trained("ppo", 4, **changes)
    returns = [metrics["r_evaluation"] for metrics in trainer.metrics]
    best = trainer.torchrl_trainer._modules["keep_best"]
    assert best.best == max(returns)
    assert len(set(returns)) > 1
    resumed = small.make("ppo", **changes)
    resumed.state = trainer.state
    again = resumed.torchrl_trainer._modules["keep_best"]
    assert again.best == best.best
    result = resumed.run_test()
    with torch.no_grad():
        for parameter in resumed.policy.parameters():
            parameter += 1.0
    last = {name: value.clone() for name, value in resumed.policy.state_dict().items()}
    assert resumed.run_test() == result
    assert all(value.equal(last[name]) for name, value in resumed.policy.state_dict().items())
    resumed.torchrl_trainer._modules.pop("keep_best")
    assert resumed.run_test() != result
    resumed.policy.load_state_dict(best.weights)
    assert resumed.run_test() == result


@pytest.mark.slow
def test_a_state_of_other_networks_is_refused(small):
    state = small.trained("ppo", 1).state
    other = small.make("ppo", networks__policy_network__num_cells=[8])
    with pytest.raises(StateError, match="does not fit the trainer"):
        other.state = state


def test_a_folder_without_a_state_says_what_is_missing(tmp_path):
    with pytest.raises(CheckPointNotFoundError, match=r"state\.json is missing"):
        TorchRlState.load(tmp_path)


@pytest.mark.slow
def test_the_whole_of_training_by_one_call_does_the_same(small, tmp_path):
    staged = small.trained("ppo", 4)
    whole = small.make("ppo")
    whole.train()
    assert whole.state == staged.state
    assert whole.test_results["test"] == staged.run_test()
    assert runs_in_stages(type(whole))


@pytest.mark.in_turn(3)
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("algorithm", [*FAST, *SLOW])
def test_the_same_code_trains_on_a_gpu(small, algorithm):
    trainer = small.build(small.parameters(algorithm), device="cuda")
    trainer.initial_state()
    trainer.run_iterations(0, 1)
    cut = trainer.state
    trainer.run_iterations(1, 2)
    devices = {p.device.type for p in trainer.torchrl_trainer.loss_module.parameters()}
    assert devices == {"cuda"}
    resumed = small.build(small.parameters(algorithm), device="cuda")
    resumed.state = cut
    resumed.run_iterations(1, 2)
    assert resumed.state == trainer.state
    assert resumed.run_test() == trainer.run_test()
