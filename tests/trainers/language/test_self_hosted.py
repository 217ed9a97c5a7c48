"""Guarantees of every trainer with a local model, regardless of its algorithm."""

from __future__ import annotations

import copy

import pytest
import torch
from omegaconf import OmegaConf

from ratchet.algorithms.language.token_weights import weighted_sum
from ratchet.errors import DataError, ParameterError
from ratchet.parameters.language import LanguageOptimizerParameters
from ratchet.rollouts import Batch
from tests.trainers.language.conftest import differ, weights_of
from trainers.language.cross_entropy import CrossEntropyTrainer
from trainers.language.dpo import DpoTrainer, preference_pairs
from trainers.language.grpo import GrpoTrainer
from trainers.language.optimization import LanguageOptimizer
from trainers.language.ppo import LanguagePpoTrainer
from trainers.language.self_hosted import SelfHostedTrainer

TRAINERS = [GrpoTrainer, LanguagePpoTrainer, CrossEntropyTrainer, DpoTrainer]
CE = {"cross_entropy": {"min_reward": 0.2}}


class Plain(SelfHostedTrainer):
    """Rewards are advantages."""

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        batch.metadata["advantages"] = batch.metadata["rewards"]
        return batch, {"mine/mean": float(batch.values["advantages"].mean())}


@pytest.mark.parametrize("trainer_class", TRAINERS)
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean_token_mean", "constant"])
def test_parts_of_a_minibatch_change_nothing(trainer_class, aggregation, connected, play):
    loss = {trainer_class.section: {"aggregation": aggregation}}
    if trainer_class in (CrossEntropyTrainer, DpoTrainer):
        loss = CE
    whole, parts = (
        connected(trainer_class, micro_batch_size=size, optimizer={"lr": 1e-2}, **loss)
        for size in (None, 3)
    )
    metrics = [trainer.train(play()) for trainer in (whole, parts)]
    assert differ(weights_of(whole), weights_of(parts)) < 2e-5
    assert metrics[0]["actor/loss"] == pytest.approx(metrics[1]["actor/loss"], abs=1e-5)
    assert metrics[0].keys() == metrics[1].keys()


@pytest.mark.parametrize("trainer_class", TRAINERS)
def test_a_state_is_gone_on_with_bit_for_bit(trainer_class, connected, play):
    config = {"num_epochs": 2, "minibatch_size": 6, **CE}
    through, cut = (connected(trainer_class, **config) for _ in range(2))
    for seed in range(4):
        through.train(play(seed=seed))
    cut.train(play(seed=0))
    cut.train(play(seed=1))
    state = cut.take_state()
    resumed = connected(trainer_class, **config)
    resumed.put_state(state)
    for seed in (2, 3):
        resumed.train(play(seed=seed))
    assert differ(weights_of(through), weights_of(resumed)) == 0
    assert differ(weights_of(through), weights_of(cut)) > 0


@pytest.mark.parametrize("trainer_class", TRAINERS)
def test_nothing_and_one_answer(trainer_class, connected, play):
    trainer = connected(trainer_class, **CE)
    before = weights_of(trainer)
    assert trainer.train([])["training/num_trajectories"] == 0
    assert differ(before, weights_of(trainer)) == 0
    alone = trainer.train(play(groups=1, size=1))
    assert all(abs(value) < float("inf") for value in alone.values())
    if trainer_class in (GrpoTrainer, DpoTrainer):  # nothing to compare with
        assert differ(before, weights_of(trainer)) == 0


def test_what_a_custom_trainer_prepares_reaches_the_loss(connected, play):
    seen = {}

    class Adding(Plain):
        def _prepare_batch(self, batch):
            batch, metrics = super()._prepare_batch(batch)
            batch.values["mine"] = torch.arange(len(batch), dtype=torch.float32)
            return batch, metrics

        def _compute_loss(self, scores, batch, weights):
            seen["mine"] = batch.values["mine"]
            loss, figures = super()._compute_loss(scores, batch, weights)
            figures["mine/last"] = weighted_sum(scores.log_probs.detach(), weights[1])
            return loss, figures

    metrics = connected(Adding).train(play(groups=1, size=3))
    assert seen["mine"].tolist() == [0, 1, 2]
    assert metrics["mine/last"] < 0
    assert "mine/mean" in metrics


def test_a_missing_field_is_named(connected, play):
    class Forgetful(Plain):
        def _prepare_batch(self, batch):
            del batch.values["position_ids"]
            return super()._prepare_batch(batch)

    with pytest.raises(DataError, match=r"missing values \['position_ids'\].*input_ids"):
        connected(Forgetful).train(play())


def test_a_trainer_can_be_made_of_a_small_config_alone():
    config = OmegaConf.create(
        {
            "algorithm": {"my_param": 0.5, "clip_low": 0.1},
            "train_service": {"world_size": 1, "backend": "self-hosted"},
        }
    )
    trainer = Plain(config)
    assert trainer._config.algorithm.get("my_param", 0) == 0.5
    assert trainer._config.algorithm.get("other", 7) == 7
    assert trainer.loss_parameters.clip_low == 0.1
    batch = Batch.from_trajectories([], pad_token_id=0)
    assert "advantages" in trainer._prepare_batch(batch)[0].values
    with pytest.raises(ParameterError, match="language"):
        Plain({"group_size": 0})


def test_the_reference_pulls_back(connected, play):
    """With a strong KL penalty the policy stays closer to the initial one, in reward and loss."""
    kept = {}
    for name, kl in {
        "none": {},
        "loss": {"coef": 5.0},
        "reward": {"coef": 5.0, "place": "reward"},
    }.items():
        trainer = connected(
            GrpoTrainer, optimizer={"lr": 3e-3}, grpo={"kl": kl, "advantage_scale": "none"}
        )
        for seed in range(12):
            metrics = trainer.train(play(seed=seed, groups=6, size=6, model=trainer.model))
        reference = connected(GrpoTrainer).model
        batch = Batch.from_trajectories(play(seed=99, model=trainer.model), 0)
        own, before = (trainer._score_in_parts(m, batch) for m in (trainer.model, reference))
        kept[name] = float((own - before).detach().sum(1).mean())
        assert ("critic/kl_coeff" in metrics) == bool(kl)
    assert kept["loss"] < kept["none"] / 2
    assert kept["reward"] < kept["none"] / 2


def test_a_target_adapts_the_pull(connected, play):
    kl = {"coef": 0.1, "target": 1e-6, "horizon": 16}
    trainer = connected(GrpoTrainer, grpo={"kl": kl}, optimizer={"lr": 1e-2})
    for seed in range(8):
        trainer.train(play(seed=seed, groups=8, size=8, model=trainer.model))
    assert trainer._kl_coef > 0.1
    going_on = connected(GrpoTrainer, grpo={"kl": kl})
    going_on.put_state(trainer.take_state())
    assert going_on._kl_coef == trainer._kl_coef
    fixed = connected(GrpoTrainer, grpo={"kl": {"coef": 0.3}})
    fixed.put_state(trainer.take_state())
    assert fixed._kl_coef == 0.3, "a fork without a target has its own"


def test_pairs_are_the_best_and_the_worst_of_a_group():
    groups = ["a", "b", "a", "b", "a", "c"]
    assert preference_pairs(groups, [0, 1, 1, 1, 0, 5]) == [(2, 0)]


def test_grpo_learns_what_is_paid(connected, play):
    trainer = connected(GrpoTrainer, optimizer={"lr": 1e-2})
    first = trainer.train(play(groups=8, size=8, model=trainer.model))["critic/score/mean"]
    for seed in range(1, 20):
        last = trainer.train(play(groups=8, size=8, seed=seed, model=trainer.model))
    assert last["critic/score/mean"] > first + 0.3
    assert last["actor/sampler_difference"] < 1e-5  # the sampler agrees


def test_a_state_of_the_optimizer_is_restored_as_often_as_wanted():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = LanguageOptimizer([weight], LanguageOptimizerParameters(lr=0.1))
    weight.grad = torch.ones(3)
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    before = copy.deepcopy(state)
    optimizer.load_state_dict(state)
    weight.grad = torch.full((3,), 2.0)
    optimizer.step()
    for name, moment in state["moments"][0].items():
        assert torch.equal(moment, before["moments"][0][name]), "a step does not change a state"


@pytest.mark.parametrize("trainer_class", [GrpoTrainer, LanguagePpoTrainer])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reward_function_without_a_finite_number_is_refused_with_its_task(
    connected, play, trainer_class, bad
):
    class Broken(trainer_class):
        def _reward_fn(self, batch):
            scores = super()._reward_fn(batch)
            scores[5, -1] = bad
            return scores

    grpo = {"grpo": {"advantage_scale": "batch"}} if trainer_class is GrpoTrainer else {}
    trainer = connected(Broken, **grpo)
    with pytest.raises(DataError, match=rf"token_level_scores: row 5 \(task 'task 1'\) has {bad}"):
        trainer.train(play())
