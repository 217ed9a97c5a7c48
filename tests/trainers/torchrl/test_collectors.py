"""The library's collectors with workers are chosen by their group, and are what the guide says."""

from __future__ import annotations

import logging

import pytest

from trainers.torchrl.assembly import has_workers, is_reproducible

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WORKERS = {
    "collector__num_workers": 2,
    "trainer__weight_update_map": {"policy": "loss_module.actor_network"},
}


@pytest.fixture
def with_workers(small):
    made = []

    def make(kind, **changes):
        choice = {"torchrl__choices": {"collector": kind}}
        trainer = small.make("ppo", **choice, **WORKERS, **changes)
        made.append(trainer)
        return trainer

    yield make
    for trainer in made:
        trainer.close()


def learned(trainer):
    """Return the tensors of the loss; frames have labels that depend on which worker is first."""
    tensors = trainer.state.tensors
    return {name: tensor for name, tensor in tensors.items() if name.startswith("/loss")}


def test_workers_that_are_waited_for_play_the_same_again_and_after_a_cut(with_workers):
    whole, cut, resumed = (with_workers("multi_sync") for _ in range(3))
    whole.initial_state()
    assert has_workers(whole.torchrl_trainer)
    assert is_reproducible(whole.torchrl_trainer)
    metrics = whole.run_iterations(0, 2)
    cut.initial_state()
    assert cut.run_iterations(0, 1) == metrics[:1]
    resumed.state = cut.state
    assert resumed.run_iterations(1, 2) == metrics[1:]
    one, other = learned(whole), learned(resumed)
    assert one
    assert all(one[name].equal(other[name]) for name in one)


def test_workers_that_run_ahead_train_and_are_warned_of(with_workers, caplog):
    trainer = with_workers("multi_async")
    with caplog.at_level(logging.WARNING):
        trainer.initial_state()
    assert "runs ahead of the learner: what is learned depends on timing" in caplog.text
    metrics = trainer.run_iterations(0, 2)
    assert metrics[-1]["collected_frames"] == 96.0
    assert metrics[-1]["loss_objective"] == metrics[-1]["loss_objective"]
    assert not is_reproducible(trainer.torchrl_trainer)


def test_running_means_in_workers_are_warned_of(with_workers, caplog):
    """They are in no state, and tests would use their own."""
    with caplog.at_level(logging.WARNING):
        with_workers("multi_sync").initial_state()
        assert "state of transforms" not in caplog.text
        with_workers(
            "multi_sync",
            training_env__transform__transforms=[
                "${double_to_float}",
                "${step_counter}",
                "${norm}",
            ],
            torchrl__config__norm={
                "_target_": "torchrl.envs.transforms.VecNormV2",
                "in_keys": ["observation"],
            },
            trainer__log_rewards=False,
        ).initial_state()
    assert "is neither stored nor used in tests" in caplog.text
