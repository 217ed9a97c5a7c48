"""REINFORCE: its loss, its rewards to go, and the trainer."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from ratchet.algorithms.policy_losses import reinforce_loss
from ratchet.errors import ParameterError
from trainers.registry import trainer_class
from trainers.tensordict.objectives.joint_estimator import number_episodes
from trainers.tensordict.objectives.value_estimators import DEFAULT_KEYS
from trainers.tensordict.optimization.replay import EpisodeBuffer
from trainers.tensordict.reinforce import RewardToGoEstimator
from trainers.tensordict.states.state import State


def test_the_loss_by_hand_and_its_gradient():
    log_prob = torch.tensor([[-1.0, -5.0], [-2.0, -0.5]], requires_grad=True)
    weight = torch.tensor([[3.0, 9.0], [-1.0, 2.0]], requires_grad=True)
    mask = torch.tensor([[True, False], [True, True]])
    loss = reinforce_loss(log_prob, weight, mask)
    assert loss.tolist() == [(3.0 - 2.0) / 2, 1.0]
    loss.sum().backward()
    assert log_prob.grad.tolist() == [[-1.5, 0.0], [0.5, -2.0]]
    assert weight.grad is None


def test_the_expected_gradient_is_that_of_the_expected_return():
    logits = torch.tensor([0.2, -0.4, 1.0], dtype=torch.float64, requires_grad=True)
    returns = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    log_prob = torch.log_softmax(logits, 0)
    # Every outcome once, weighted by its probability; the loss is a mean over three.
    weight = (3 * log_prob.exp().detach() * returns).unsqueeze(1)
    mask = torch.ones(3, 1, dtype=torch.bool)
    loss = reinforce_loss(log_prob.unsqueeze(1), weight, mask).sum()
    (found,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (expected,) = torch.autograd.grad(-(log_prob.exp() * returns).sum(), logits)
    torch.testing.assert_close(found, expected)


def rollouts(done, reward, *, agents=1):
    size = list(torch.tensor(done).shape)
    ends = torch.tensor(done)
    following = TensorDict(
        {
            "done": ends,
            "terminated": torch.zeros_like(ends),
            "agents": TensorDict({"reward": torch.tensor(reward).unsqueeze(-1)}, batch_size=size),
        },
        batch_size=size,
    )
    active = torch.ones(*size, agents, 1, dtype=torch.bool)
    now = TensorDict({"active": active}, batch_size=size)
    return TensorDict({"agents": now, "next": following}, batch_size=size)


def test_rewards_to_go_are_learned_from_where_the_episode_had_time_to_end():
    td = rollouts([[False, True, True, False]], [[1.0, 2.0, 4.0, 8.0]])
    estimator = RewardToGoEstimator(gamma=0.5, keys=dict(DEFAULT_KEYS), horizon=2)
    td = estimator(td)
    assert td["agents", "advantage"].flatten().tolist() == [2.0, 2.0, 4.0, 8.0]
    # The last episode started with one step left: it might have needed two.
    assert td["agents", "learns"].flatten().tolist() == [True, True, True, False]


def test_episodes_and_their_steps_are_numbered():
    td = rollouts([[False, True, True, False], [False, False, False, True]], [[0.0] * 4] * 2)
    episode, step = number_episodes(td)
    assert episode.tolist() == [[0, 0, 1, 2], [0, 0, 0, 0]]
    assert step.tolist() == [[0, 1, 0, 0], [0, 1, 2, 3]]


@pytest.mark.parametrize(("minibatch_size", "sizes"), [(6, [2, 2, 1]), (2, [1] * 5), (99, [5])])
def test_minibatches_of_episodes_are_whole_rows_each_once(minibatch_size, sizes):
    place = torch.arange(15).view(5, 3)
    td = TensorDict({"round": place, "x": place}, batch_size=[5, 3])
    buffer = EpisodeBuffer(minibatch_size)
    buffer.store(td)
    assert len(buffer) == 15
    generator = torch.Generator().manual_seed(0)
    found = list(buffer.minibatches(generator, ["x", "index"]))
    assert [batch.batch_size[0] for batch in found] == sizes
    rows = torch.cat([batch["x"] for batch in found])
    assert torch.equal(rows[rows[:, 0].argsort()], place)
    assert not torch.equal(rows, place)
    assert all(torch.equal(batch["index"], batch["x"]) for batch in found)
    assert torch.equal(buffer.frames["x"], place.flatten())


def reinforce(tiny, *, critic, **changes):
    return tiny.trainer(
        tiny.parameters(trainer="reinforce", reinforce__use_advantage_and_critic=critic, **changes)
    )


PROTOCOLS = {
    "nip": {},
    "adp": {},
    "debate": {"debate_protocol__max_message_rounds": 3},
    "merlin_arthur": {},
    "solo_verifier": {},
    "nip, zero knowledge": {"protocol_common__zero_knowledge": True},
}


_QUICK = ("solo_verifier", "nip, zero knowledge")


@pytest.mark.in_turn(1)
@pytest.mark.parametrize(
    "name",
    [n if n in _QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PROTOCOLS],
)
def test_two_iterations_under_every_protocol(tiny, name):
    trainer = reinforce(
        tiny,
        critic=name in ("adp", "nip, zero knowledge"),
        interaction_protocol=name.partition(",")[0],
        **PROTOCOLS[name],
    )
    before = trainer.initial_state()
    for metrics in trainer.run_iterations(0, 2):
        assert torch.tensor(list(metrics.values())).isfinite().all()
    assert State(agents=trainer.state.agents) != State(agents=before.agents)


@pytest.mark.parametrize("critic", [False, True])
def test_any_cut_into_stages_gives_the_same_bits(tiny, tmp_path, critic):
    whole = reinforce(tiny, critic=critic)
    whole.initial_state()
    metrics = whole.run_iterations(0, 2)
    first = reinforce(tiny, critic=critic)
    first.initial_state()
    found = first.run_iterations(0, 1)
    first.state.save(tmp_path / "state")
    torch.manual_seed(4711)
    second = reinforce(tiny, critic=critic)
    second.state = State.load(tmp_path / "state")
    assert found + second.run_iterations(1, 2) == metrics
    assert second.state == whole.state


@pytest.mark.parametrize("critic", [False, True])
def test_the_critic_learns_only_where_it_is_asked_for(tiny, critic):
    trainer = reinforce(tiny, critic=critic)
    before = trainer.initial_state()
    (metrics,) = trainer.run_iterations(0, 1)
    after = trainer.state.agents["verifier"]
    same = [
        torch.equal(tensor, before.agents["verifier"][name])
        for name, tensor in after.items()
        if name.startswith("value_head")
    ]
    assert same
    assert all(same) == (not critic)
    assert ("verifier.critic_loss" in metrics) == critic
    assert ("verifier.mean_value_target" in metrics) == critic


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rl__steps_per_env_per_iteration": 2}, "steps_per_env_per_iteration: got 2"),
        (
            {"reinforce__use_advantage_and_critic": True, "rl__clip_value": True},
            "clip_value: got true",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_beforehand_with_the_reason(tiny, changes, message):
    with pytest.raises(ParameterError, match=message):
        trainer_class(tiny.parameters(trainer="reinforce", **changes))


@pytest.mark.parametrize(
    ("critic", "change", "is_read"),
    [
        (True, {"rl__lmbda": 0.5}, True),
        (False, {"rl__lmbda": 0.5}, False),
        (False, {"rl__loss_critic_type": "l1"}, False),
        (False, {"rl__gamma": 0.5}, True),
        (False, {"ppo__entropy_eps": 0.5}, False),
        (True, {"spg__variant": "lola"}, False),
    ],
)
def test_keys_have_what_is_read(tiny, critic, change, is_read):
    base = {"trainer": "reinforce", "reinforce__use_advantage_and_critic": critic}
    keys = []
    for changes in (base, base | change):
        hyper_params = tiny.parameters(**changes)
        keys.append(trainer_class(hyper_params).stage_key_parameters(hyper_params, "train"))
    assert (keys[0] != keys[1]) == is_read
