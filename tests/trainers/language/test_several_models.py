"""Several models learn in one game: each from its own seat, with a separate state."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ratchet.errors import ParameterError, StateError
from ratchet.experiment_files.loading import load_experiment
from ratchet.language_models.local import adapters
from ratchet.scenarios import build_scenario_instance
from ratchet.tracking.trainer_files import SavedState
from trainers.language.state import LanguageState
from trainers.registry import build_trainer, trainer_class

EXAMPLE = Path(__file__).parents[3] / "examples/language/custom_game.yaml"
SMALL = (
    *("rl.num_iterations=4", "language_task.num_train=40", "language_task.num_test=8"),
    *("language.tasks_per_step=8", "agents._default.warm_up.num_steps=5"),
)
BOTH = "agents.right.model=small"
SHARED = "agents._default.shared_model_group=players"

CUSTOM = """
from trainers.language.grpo import GrpoTrainer

class Counts(GrpoTrainer):
    def train(self, trajectories):
        self.seen = getattr(self, "seen", 0) + len(trajectories)
        return super().train(trajectories)
"""


def build(*changes, example=EXAMPLE):
    experiment = load_experiment(example, (*SMALL, *changes))
    base_dir = Path(str(experiment.settings.base_dir))
    parts = experiment.hyper_params, experiment.settings
    instance = build_scenario_instance(*parts, base_dir=base_dir)
    return build_trainer(parts[0], instance, parts[1], base_dir)


def weights(trainer, model):
    return trainer.learners[model].model.state_dict()


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_each_seat_trains_its_own_model(tmp_path):
    trainer = build(BOTH)
    trainer.initial_state()
    assert list(trainer.learners) == ["left", "right"]
    first = {
        name: {k: v.clone() for k, v in weights(trainer, name).items()} for name in trainer.learners
    }
    assert not same(first["left"], first["right"]), "initialised from seeds of their own"
    (metrics,) = trainer.run_iterations(0, 1)
    assert all(not same(first[name], weights(trainer, name)) for name in first)
    assert (
        metrics["left/training/num_trajectories"]
        == metrics["right/training/num_trajectories"]
        == 16
    )
    assert "actor/loss" not in metrics


@pytest.mark.parametrize(
    "changes",
    [
        (BOTH,),
        (BOTH, "language.mode=one_step_behind"),
        (BOTH, SHARED),
        (),
        (BOTH, "grpo.redraws.left=2"),
    ],
)
def test_a_trainer_continues_from_a_saved_state_with_the_same_bits(changes, tmp_path):
    whole = build(*changes)
    whole.initial_state()
    whole.save_state(tmp_path / "initial", "key of initial")
    whole.run_iterations(0, 2)
    whole.save_state(tmp_path / "half", "key of half")
    whole.run_iterations(2, 4)
    resumed = build(*changes)
    resumed.load_state(tmp_path / "half", "", lambda key: tmp_path / key.removeprefix("key of "))
    resumed.run_iterations(2, 4)
    assert resumed.state == whole.state
    assert resumed.evaluate("test").table == whole.evaluate("test").table
    assert LanguageState.load(tmp_path / "half").learners.keys() == whole.learners.keys()


def test_adapters_of_one_base_model_share_its_weights(tmp_path, monkeypatch):
    base = build()
    base.initial_state()
    base.learner.save_model(tmp_path / "base")
    changes = (
        *(
            BOTH,
            f"agents._default.model={tmp_path / 'base'}",
            f"agents.right.model={tmp_path / 'base'}",
        ),
        *("agents._default.lora.rank=2", "agents._default.warm_up.num_steps=0"),
        "agents.right.lora.target_modules=[q_proj]",
    )
    trainer = build(*changes)
    trainer.initial_state()
    left, right = (learner.model for learner in trainer.learners.values())
    assert set(left.sharing) == set(right.sharing) == {left, right}
    assert left.num_on_device == right.num_on_device == 2
    storages = [
        {each.untyped_storage().data_ptr() for each in model.all_parameters()}
        for model in (left, right)
    ]
    own = [len(model.parameters()) for model in (left, right)]
    assert len(storages[0] | storages[1]) == len(storages[0]) + own[1]
    assert own[0] > own[1], "the adapters have different layers"
    trainer.run_iterations(0, 2)
    monkeypatch.setattr(type(left), "share_frozen_weights", lambda model, others: None)
    apart = build(*changes)
    apart.initial_state()
    apart.run_iterations(0, 2)
    assert apart.state == trainer.state
    assert set(apart.learners["left"].model.sharing) == {apart.learners["left"].model}


def test_base_models_with_one_digest_but_other_weights_are_not_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(adapters, "weights_print", lambda folder: "the same")
    seeds = {"left": 1, "right": 2}
    for name, seed in seeds.items():
        base = build(f"seed={seed}")
        base.initial_state()
        base.learner.save_model(tmp_path / name)
    trainer = build(
        *(f"agents.{name}.model={tmp_path / name}" for name in seeds),
        *("agents._default.lora.rank=2", "agents._default.warm_up.num_steps=0"),
    )
    trainer.initial_state()
    for learner in trainer.learners.values():
        assert set(learner.model.sharing) == {learner.model}


def test_a_shared_model_learns_from_all_seats():
    trainer = build(BOTH, SHARED)
    trainer.initial_state()
    assert list(trainer.learners) == ["players"]
    (metrics,) = trainer.run_iterations(0, 1)
    assert metrics["training/num_trajectories"] == 32


def test_draws_of_a_turn_are_compared_with_each_other():
    trainer = build(BOTH, "language.group_size=1", "grpo.redraws.left=2", "grpo.redraws.right=1")
    trainer.initial_state()
    (metrics,) = trainer.run_iterations(0, 1)
    assert metrics["left/grpo/num_groups"] == metrics["right/grpo/num_groups"] == 8
    assert metrics["left/training/num_trajectories"] == 24
    assert metrics["right/training/num_trajectories"] == 16
    assert metrics["rollout/num_rollouts"] == 32
    for model in ("left", "right"):
        assert trainer.learners[model].take_state()["averages"] == {}, "no average is a baseline"
        assert metrics[f"{model}/critic/advantages/mean"] == pytest.approx(0, abs=1e-6)


def test_redraws_that_cannot_be_compared_are_refused():
    def check(*changes):
        hyper_params = load_experiment(EXAMPLE, (*SMALL, *changes)).hyper_params
        trainer_class(hyper_params, EXAMPLE.parent).check_parameters(hyper_params, EXAMPLE.parent)

    with pytest.raises(ParameterError, match=r"grpo.redraws: got 'right', expected .*: left"):
        check("grpo.redraws.right=1")
    with pytest.raises(ParameterError, match=r"got \[0, 2\] redraws for .*'players'"):
        check(BOTH, SHARED, "grpo.redraws.left=2")
    with pytest.raises(ParameterError, match=r"dynamic_sampling: got true with grpo.redraws"):
        check("grpo.redraws.left=2", "grpo.variant=dapo")


def test_results_have_the_return_of_each_seat():
    trainer = build(BOTH)
    trainer.initial_state()
    result = trainer.evaluate("test")
    assert len(result.table["reward.left"]) == 8
    for seat in ("left", "right"):
        rewards = result.table[f"reward.{seat}"]
        assert result.metrics[f"{seat}.mean_episode_reward"] == sum(rewards) / 8
    assert {"left.illegal_reply", "truncated_fraction"} <= result.metrics.keys()
    against_random = build()
    against_random.initial_state()
    assert against_random.evaluate("test").table.keys() == result.table.keys()


def test_a_state_of_other_models_is_refused(tmp_path):
    trainer = build(BOTH)
    trainer.initial_state()
    trainer.save_state(tmp_path / "initial", "initial")
    with pytest.raises(StateError, match="the models left, right, expected players"):
        build(BOTH, SHARED).load_state(tmp_path / "initial", "", lambda key: tmp_path / key)


def test_a_state_without_its_models_files_is_refused(tmp_path):
    earlier = build(BOTH)
    earlier.initial_state().save(tmp_path)
    parameters = earlier.hyper_params.replace(
        {
            "agents.left.load_checkpoint_and_parameters": True,
            "agents.left.checkpoint_run_id": "source",
        }
    )
    base_dir = Path(str(earlier.settings.base_dir))
    instance = build_scenario_instance(parameters, earlier.settings, base_dir=base_dir)
    trainer = build_trainer(parameters, instance, earlier.settings, base_dir)
    saved = SavedState("source", 0, "", parameters.to_dict(), lambda: tmp_path)
    trainer.state_finder = lambda run, version: saved
    with pytest.raises(
        StateError, match="agent 'left' of run source after 0 iterations: the state"
    ):
        trainer.initial_state()


def test_attributes_of_each_custom_trainer_are_stored(tmp_path):
    for name in ("custom_game.py", "custom_game.yaml"):
        (tmp_path / name).write_text((EXAMPLE.parent / name).read_text())
    (tmp_path / "counts.py").write_text(CUSTOM)
    changes = (BOTH, "trainer=counts.py:Counts", "language_task.num_train=40")
    trainer = build(*changes, example=tmp_path / "custom_game.yaml")
    trainer.initial_state()
    trainer.save_state(tmp_path / "initial", "initial")
    trainer.run_iterations(0, 2)
    trainer.save_state(tmp_path / "state", "state")
    again = build(*changes, example=tmp_path / "custom_game.yaml")
    again.load_state(tmp_path / "state", "", lambda key: tmp_path / key)
    assert {name: learner.seen for name, learner in again.learners.items()} == {
        "left": 32,
        "right": 32,
    }


def test_agents_of_a_group_have_the_same_parameters_and_somebody_learns():
    def check(*changes):
        hyper_params = load_experiment(EXAMPLE, (*SMALL, *changes)).hyper_params
        trainer_class(hyper_params, EXAMPLE.parent).check_parameters(hyper_params, EXAMPLE.parent)

    check(BOTH, SHARED)
    group = "agents.right.shared_model_group=players"
    with pytest.raises(ParameterError, match=r"agents.right: .*shared_model_group 'players'"):
        check(BOTH, SHARED, group, "agents.right.temperature=0.5")
    with pytest.raises(ParameterError, match=r"'random' or a function .*left, right"):
        check("agents._default.model=random")
