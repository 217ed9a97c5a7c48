"""Agents with one network, and critics that see all agents: shared weights and inputs."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from ratchet import HyperParameters
from ratchet.errors import ParameterError
from ratchet.scenarios.gymnasium.actor_critic import ControlActorCritic
from ratchet.scenarios.gymnasium.networks import build_all_agents
from ratchet.scenarios.gymnasium.spaces import AgentSpace, AgentSpaces, DiscreteActions

NAMES = ("one", "two", "three")
ALIKE = AgentSpaces({name: AgentSpace(3, DiscreteActions((4,))) for name in NAMES})


def built(spaces=ALIKE, named=None, **section):
    hyper_params = HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset="CartPole-v1",
        agents={"_default": {"hidden_sizes": [8], "policy_gain": 1.0, **section}, **(named or {})},
    )
    sections = {name: hyper_params.agents[name] for name in spaces.names}
    agents = build_all_agents(hyper_params, spaces, sections)
    return ControlActorCritic(agents, spaces, normalizes=False), hyper_params.rl


def frames(count=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    observation = torch.randn(count, 3, 3, generator=generator)
    action = torch.randint(4, (count, 3, 1), generator=generator)
    inner = TensorDict({"observation": observation, "action": action}, batch_size=[count])
    return TensorDict({"agents": inner}, batch_size=[count])


def gradients(agents, td, weights=None):
    scores = agents.score(td)
    total = sum((part * (index + 1)).sin().sum() for index, part in enumerate(scores))
    return torch.autograd.grad(total, list(agents.parameters()) if weights is None else weights)


@pytest.mark.parametrize("centralised", [False, True])
def test_gradients_of_one_network_are_the_sum_of_those_of_its_agents(centralised):
    """Against three networks with the same weights."""
    shared, _ = built(shared_model_group="all", centralised_critic=centralised)
    apart, _ = built(centralised_critic=centralised)
    one = shared.parts["one"].state_dict()
    for name in NAMES:
        apart.parts[name].load_state_dict(one)
    td = frames()
    for mine, theirs in zip(shared.score(td), apart.score(td), strict=True):
        assert torch.equal(mine, theirs)
    weights = dict(shared.parts["one"].named_parameters())
    found = dict(zip(weights, gradients(shared, td, list(weights.values())), strict=True))
    for key, gradient in found.items():
        each = [dict(apart.parts[name].named_parameters())[key] for name in NAMES]
        expected = sum(gradients(apart, td, each))
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)


def test_agents_of_a_group_have_the_parts_of_the_first_and_the_others_their_own():
    agents, rl = built(named={n: {"shared_model_group": "pair"} for n in ("one", "three")})
    one, two, three = (dict(agents.parts[name].named_parameters()) for name in NAMES)
    assert all(one[key] is three[key] and one[key] is not two[key] for key in one)
    alone, _ = built()
    assert torch.equal(one["body.layers.0.weight"], alone.parts["one"].body.layers[0].weight)
    groups = agents.parameter_groups(rl)
    assert {group.agent for group in groups} == set(NAMES)  # all agents learn


@pytest.mark.parametrize("group", [None, "all"])
def test_a_centralised_critic_sees_everybody_and_a_policy_its_own_agent_only(group):
    agents, _ = built(shared_model_group=group, centralised_critic=True)
    td, other = frames(), frames()
    other["agents", "observation"][:, 2] += 1.0
    for name in ("one", "two"):
        before, after = (agents.get_dist(each)[name].logits for each in (td, other))
        assert torch.equal(before, after)
    changed = agents.get_dist(td)["three"].logits != agents.get_dist(other)["three"].logits
    assert changed.any()
    assert (agents.values(td) != agents.values(other)).all()
    plain, _ = built(shared_model_group=group)
    assert torch.equal(plain.values(td)[:, :2], plain.values(other)[:, :2])


def test_who_it_acts_for_is_told_to_a_network_that_asks():
    told, _ = built(shared_model_group="all", observes_agent_id=True)
    blind, _ = built(shared_model_group="all")
    td = frames()
    td["agents", "observation"][:] = td["agents", "observation"][:, :1]
    for agents, differ in ((told, True), (blind, False)):
        logits = [distribution.logits for distribution in agents.get_dist(td).values()]
        assert torch.equal(logits[0], logits[1]) is not differ
    assert told.parts["one"].body.layers[0].weight.shape == (8, 3 + 3)


def test_agents_of_a_group_are_normalised_alike():
    agents, _ = built(named={n: {"shared_model_group": "pair"} for n in ("one", "three")})
    td = frames(400)
    td["agents", "observation"] += torch.tensor([0.0, 5.0, 2.0])[:, None]
    agents.normalizer.fit(td)
    mean = agents.normalizer.observation_mean
    assert torch.equal(mean[0], mean[2])
    pooled = td["agents", "observation"][:, [0, 2]].flatten(0, 1)
    torch.testing.assert_close(mean[0], pooled.mean(0))
    torch.testing.assert_close(mean[1], td["agents", "observation"][:, 1].mean(0))


def test_agents_that_are_not_alike_cannot_have_one_network():
    unlike = AgentSpaces({**ALIKE.by_name, "two": AgentSpace(2, DiscreteActions((4,)))})
    with pytest.raises(ParameterError, match=r"agents\.two\.shared_model_group.*spaces"):
        built(unlike, shared_model_group="all")
    named = {"two": {"shared_model_group": "all", "activation_function": "relu"}}
    with pytest.raises(ParameterError, match=r"agents\.two\.shared_model_group.*activation_func"):
        built(named=named, shared_model_group="all")
