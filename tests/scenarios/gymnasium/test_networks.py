"""Perceptrons and distributions of agents in environments."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch.distributions import Categorical, Independent, Normal

from ratchet import HyperParameters
from ratchet.scenarios.gymnasium import actor_critic
from ratchet.scenarios.gymnasium.actor_critic import (
    ContinuousActionDistribution,
    ControlActorCritic,
    DiscreteActionDistribution,
    categorical_scores,
)
from ratchet.scenarios.gymnasium.networks import build_agent
from ratchet.scenarios.gymnasium.spaces import (
    AgentSpace,
    AgentSpaces,
    ContinuousActions,
    DiscreteActions,
)


@pytest.mark.parametrize("sizes", [(4,), (2, 3)])
def test_scores_of_choices_are_torchs(sizes):
    logits = torch.randn(9, sum(sizes), requires_grad=True)
    actions = torch.stack([torch.randint(size, (9,)) for size in sizes], -1)
    peers = [Categorical(logits=part) for part in logits.split(list(sizes), -1)]
    expected = [
        sum(peer.log_prob(actions[:, i]) for i, peer in enumerate(peers)),
        sum(peer.entropy() for peer in peers),
    ]
    plain = categorical_scores(logits, actions, sizes)
    weights = torch.randn(2, 9)

    def gradient(outputs):
        flat = [out.flatten() for out in outputs]
        for one, other in zip(flat, expected, strict=True):
            torch.testing.assert_close(one, other)
        total = sum((out * weight).sum() for out, weight in zip(flat, weights, strict=True))
        return torch.autograd.grad(total, logits, retain_graph=True)[0]

    theirs = gradient(expected)
    torch.testing.assert_close(gradient(plain), theirs, rtol=1e-4, atol=1e-5)


def test_normal_numbers_are_torchs():
    mean, log_std = torch.randn(6, 2), torch.tensor([0.3, -0.7])
    mine = ContinuousActionDistribution(mean, log_std)
    peer = Independent(Normal(mean, log_std.exp()), 1)
    actions = mine.sample(torch.Generator().manual_seed(0))
    log_prob, entropy = mine.log_prob_and_entropy(actions)
    torch.testing.assert_close(log_prob[:, 0], peer.log_prob(actions))
    torch.testing.assert_close(entropy[:, 0], peer.entropy())
    assert torch.equal(mine.mode(), mean)


@pytest.mark.parametrize("sizes", [(3,), (2, 4)])
def test_choices_are_drawn_as_likely_as_they_are(sizes):
    logits = torch.randn(1, sum(sizes)).expand(20_000, -1)
    choice = DiscreteActionDistribution(logits, sizes)
    drawn = choice.sample(torch.Generator().manual_seed(0))
    for index, part in enumerate(logits[0].split(list(sizes))):
        shares = torch.bincount(drawn[:, index], minlength=len(part)) / len(drawn)
        torch.testing.assert_close(shares, part.softmax(-1), rtol=0, atol=0.02)
        assert int(choice.mode()[0, index]) == int(part.argmax())


def two_agents(shared=True, **section):
    hyper_params = HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset="CartPole-v1",
        rl={"use_shared_body": shared},
        agents={"_default": {"hidden_sizes": [8], **section}},
    )
    spaces = AgentSpaces(
        {
            "one": AgentSpace(2, DiscreteActions((3, 2))),
            "two": AgentSpace(4, ContinuousActions((-1.0,), (1.0,))),
        }
    )
    agents = {
        name: build_agent(hyper_params, name, hyper_params.agents[name], space, "cpu")
        for name, space in spaces.by_name.items()
    }
    return ControlActorCritic(agents, spaces, normalizes=False), hyper_params


def frames(size=6):
    agents = TensorDict({"observation": torch.randn(size, 2, 4)}, batch_size=[size])
    return TensorDict({"agents": agents}, batch_size=[size])


@pytest.mark.parametrize("shared", [True, False])
def test_what_agents_did_is_scored_as_when_they_did_it(shared):
    agents, _ = two_agents(shared)
    td = agents.act(frames(), generators={n: torch.Generator() for n in ("one", "two")})
    assert td["agents", "action"].dtype == torch.float32  # one agent's numbers are real
    assert td["agents", "action"].shape == (6, 2, 2)
    out = agents.score(td)
    torch.testing.assert_close(out[0], td["agents", "log_prob"])
    torch.testing.assert_close(out[2], td["agents", "value"])
    only = agents.score(td, agents=["two"])
    assert not only[0][:, 0].any()
    torch.testing.assert_close(only[0][:, 1], out[0][:, 1])
    named = agents.evaluate(td)["agents"]
    for name, score in zip(("log_prob", "entropy", "value"), out, strict=True):
        assert torch.equal(named[name], score)


@pytest.mark.parametrize(("shared", "most"), [(True, 2**14), (False, 2**14), (False, 7)])
def test_scores_put_off_to_the_end_of_a_rollout_are_those_of_each_step(shared, most, monkeypatch):
    monkeypatch.setattr(actor_critic, "_MOST_FRAMES", most)
    agents, _ = two_agents(shared)
    names = ("one", "two")
    at_once, put_off = ({n: torch.Generator().manual_seed(1) for n in names} for _ in range(2))
    cache = agents.new_deferring_cache()
    start = [frames() for _ in range(3)]
    steps = [agents.act(td.clone(), generators=at_once) for td in start]
    bare = [agents.act(td.clone(), generators=put_off, cache=cache) for td in start]
    assert set(bare[0]["agents"].keys()) == {"observation", "action"}
    rollouts = torch.stack(bare, 1)
    agents.complete(rollouts, cache)
    expected = torch.stack(steps, 1)
    assert torch.equal(rollouts["agents", "action"], expected["agents", "action"])
    for name in ("log_prob", "value"):
        torch.testing.assert_close(rollouts["agents", name], expected["agents", name])
        assert rollouts["agents", name].shape == (6, 3, 2)


def test_agents_see_nothing_but_their_own_observations():
    agents, _ = two_agents()
    td = frames()
    other = td.clone()
    other["agents", "observation"][:, 0, 2:] = 9.0  # beyond what the first agent has
    other["agents", "observation"][:, 1] = 0.0
    assert torch.equal(agents.values(td)[:, 0], agents.values(other)[:, 0])
    assert not torch.equal(agents.values(td)[:, 1], agents.values(other)[:, 1])


def test_random_agents_are_uniform_and_have_no_weights():
    agents, hyper_params = two_agents(is_random=True)
    assert agents.parameter_groups(hyper_params.rl) == []
    td = agents.act(frames(), generators=None)
    expected = -math.log(6)
    torch.testing.assert_close(td["agents", "log_prob"][:, 0], torch.full((6,), expected))
    assert not td["agents", "value"].any()


def test_every_parameter_is_in_one_group_with_its_factor():
    agents, hyper_params = two_agents(False, agent_lr_factor={"actor": 2.0, "critic": 0.5})
    groups = {group.name: group for group in agents.parameter_groups(hyper_params.rl)}
    assert {name: group.lr_factor for name, group in groups.items() if name.startswith("one")} == {
        "one.body": 2.0,
        "one.policy": 2.0,
        "one.value_body": 0.5,
        "one.value": 0.5,
    }
    grouped = [param for group in groups.values() for param in group.params]
    assert {id(p) for p in grouped} == {id(p) for p in agents.parameters()}
    assert len(grouped) == len(list(agents.parameters()))


def test_normalisation_is_fitted_to_each_number_of_each_agent():
    agents, _ = two_agents()
    agents.normalizes = True
    td = frames(500)
    td["agents", "observation"] = td["agents", "observation"] * torch.arange(1, 5) + 3
    td["agents", "observation"][:, 0, 3] = 7.0  # never changes
    agents.normalizer.fit(td)
    normal = agents.normalizer(td["agents", "observation"])
    torch.testing.assert_close(normal.mean(0), torch.zeros(2, 4), rtol=0, atol=1e-5)
    spread = normal.std(0, correction=0)
    expected = torch.ones(2, 4)
    expected[0, 3] = 0
    torch.testing.assert_close(spread, expected, rtol=0, atol=1e-4)
