"""Loss modules: one pass per minibatch, keys, estimators, the adapting penalty."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torchrl.objectives import ValueEstimators

from ratchet.errors import ParameterError
from trainers.tensordict.objectives.base import total_loss


@pytest.fixture
def trained(tiny):
    def make(**changes):
        trainer = tiny.trainer(tiny.parameters(**changes))
        trainer.initial_state()
        trainer.run_iterations(0, 1)
        return trainer

    return make


def _batch(trainer):
    parts = trainer.components
    generator = torch.Generator().manual_seed(0)
    return next(parts.replay_buffer.minibatches(generator, parts.loss_module.in_keys))


def test_a_minibatch_costs_one_pass_over_the_networks(trained):
    trainer = trained()
    calls = []
    for name, agent in trainer.combined_agents.agents.items():
        agent.body.register_forward_hook(lambda *_, name=name: calls.append(name))
    trainer.components.loss_module(_batch(trainer))
    assert sorted(calls) == sorted(trainer.combined_agents.agent_names)


def test_what_is_remembered_of_frames_changes_no_loss(trained):
    trainer = trained()
    batch, loss = _batch(trainer), trainer.components.loss_module
    params = list(trainer.combined_agents.parameters())

    def gradients():
        total = total_loss(loss(batch))
        return torch.autograd.grad(total, params, allow_unused=True)

    expected = gradients()
    with trainer.combined_agents.remembering(trainer.components.replay_buffer.frames):
        found = gradients()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_minibatches_cover_every_frame_once_an_epoch(trained):
    trainer = trained()
    buffer = trainer.components.replay_buffer
    buffer.frames["index"] = torch.arange(len(buffer))
    batches = list(buffer.minibatches(torch.Generator().manual_seed(1)))
    assert sorted(len(batch) for batch in batches) == [10, 11, 11]
    indices = torch.cat([batch["index"] for batch in batches])
    assert sorted(indices.tolist()) == list(range(32))
    assert indices.tolist() != list(range(32))


def test_the_loss_is_the_sum_over_agents_of_means_over_their_frames(trained):
    trainer = trained(ppo__critic_coef=3.0, ppo__entropy_eps=0.5)
    losses = trainer.components.loss_module(_batch(trainer))
    sums = {name: losses[name].sum().item() for name in ("policy_loss", "critic_loss", "entropy")}
    assert losses["loss_objective"].item() == pytest.approx(sums["policy_loss"], abs=1e-6)
    assert losses["loss_critic"].item() == pytest.approx(3 * sums["critic_loss"], rel=1e-5)
    assert losses["loss_entropy"].item() == pytest.approx(-0.5 * sums["entropy"], rel=1e-5)
    total = total_loss(losses).item()
    parts = sum(losses[f"loss_{part}"].item() for part in ("objective", "critic", "entropy"))
    assert total == pytest.approx(parts, rel=1e-5)


def test_a_frame_in_which_an_agent_does_not_learn_changes_no_loss(trained):
    trainer = trained()
    batch = _batch(trainer)
    before = trainer.components.loss_module(batch)
    hidden = ~batch["agents", "learns"]
    assert hidden.any()
    for key in ("advantage", "value_target", "log_prob"):
        batch["agents", key] = torch.where(hidden, 1e3, batch["agents", key])
    after = trainer.components.loss_module(batch)
    for name in before.keys():  # noqa: SIM118 -- a tensordict is no mapping
        torch.testing.assert_close(after[name], before[name])


def test_the_kl_weight_adapts_per_agent_and_only_for_those_who_learn(tiny):
    schedule = {"kind": "contiguous_periodic", "period": 2, "start": 1, "stop": 2}
    trainer = tiny.trainer(
        tiny.parameters(
            ppo__loss_type="kl_penalty",
            ppo__kl_target=1e-9,
            agents__prover__update_schedule=schedule,
        )
    )
    trainer.initial_state()
    loss = trainer.components.loss_module
    betas = []
    for iteration in range(2):
        trainer.run_iterations(iteration, iteration + 1)
        betas.append(loss.kl_beta.tolist())
    names = list(trainer.agent_names)
    prover, verifier = names.index("prover"), names.index("verifier")
    assert [beta[prover] for beta in betas] == [1.0, 2.0]
    assert [beta[verifier] for beta in betas] == [2.0, 4.0]
    assert trainer.state.controllers["loss"]["kl_beta"].tolist() == betas[-1]
    mean = TensorDict({"kl": torch.zeros(2)}, batch_size=[])
    loss.select_agents(None)
    loss.end_iteration(mean)
    assert loss.kl_beta.tolist() == [beta / 2 for beta in betas[-1]]


@pytest.mark.parametrize("setting", [False, True, 0.05])
def test_clip_value_is_off_or_epsilon_or_a_number(trained, setting):
    loss = trained(rl__clip_value=setting, ppo__clip_epsilon=0.3).components.loss_module
    assert loss.clip_value == {False: None, True: 0.3}.get(setting, setting)


@pytest.mark.parametrize("kind", ["smooth_l1", "l1", "l2"])
def test_every_critic_loss_trains(trained, kind):
    assert trained(rl__loss_critic_type=kind).iteration == 1


@pytest.mark.parametrize(
    ("value_type", "given", "lmbda"),
    [
        (ValueEstimators.GAE, {"lmbda": 0.5}, 0.5),
        ("gae", {"lmbda": 0.5}, 0.5),
        (ValueEstimators.TD0, {}, 0.0),
        (ValueEstimators.TD1, {}, 1.0),
        (ValueEstimators.TDLambda, {"lmbda": 0.7}, 0.7),
    ],
)
def test_estimators_are_made_from_the_librarys_names(trained, value_type, given, lmbda):
    loss = trained().components.loss_module
    loss.make_value_estimator(value_type, gamma=0.9, **given)
    assert (loss.value_estimator.gamma, loss.value_estimator.lmbda) == (0.9, lmbda)


def test_what_cannot_be_estimated_is_named(trained):
    loss = trained().components.loss_module
    with pytest.raises(ParameterError, match="'VTrace' is not supported"):
        loss.make_value_estimator(ValueEstimators.VTrace, gamma=0.9)
    with pytest.raises(ParameterError, match=r"got \['gama'\], expected gamma"):
        loss.make_value_estimator("GAE", gama=0.9)
    with pytest.raises(ParameterError, match="unknown 'valeu'"):
        loss.set_keys(valeu="v")


def test_keys_say_where_the_estimator_writes(trained):
    trainer = trained()
    loss = trainer.components.loss_module
    loss.set_keys(advantage="my_advantage")
    rollouts = trainer.components.collector.collect(0)
    loss.value_estimator(rollouts)
    assert rollouts["my_advantage"].shape == (8, 4, 2)


def test_an_objective_without_a_loss_is_told_so():
    with pytest.raises(ParameterError, match="expected a name with the prefix 'loss_'"):
        total_loss(TensorDict({"objective": torch.zeros(())}, batch_size=[]))
