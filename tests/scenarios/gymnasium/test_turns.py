"""Agents that take turns: masks, credit, losses without idle agents, memories, illegal actions."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import IllegalActionError, ParameterError
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.gymnasium.actor_critic import distribution_of
from ratchet.scenarios.gymnasium.networks import ControlAgent
from ratchet.scenarios.gymnasium.parameters import GymnasiumAgentParameters
from ratchet.scenarios.gymnasium.spaces import AgentSpace, AgentSpaces, DiscreteActions
from ratchet.scenarios.gymnasium.turns import Turn, check_turn
from trainers.registry import build_trainer
from trainers.tensordict.objectives.value_estimators import MaskedGae

HERE = Path(__file__).parent


def parameters(trainer="vanilla_ppo", agent=None, **changes):
    return HyperParameters(
        scenario="gymnasium",
        trainer=trainer,
        dataset=f"{HERE / 'nim.py'}:Nim",
        gymnasium={"num_envs": 4, "num_test_episodes": 6},
        agents={"_default": {"hidden_sizes": [8], "recurrent_size": 4, **(agent or {})}},
        rl={
            "frames_per_batch": 48,
            "minibatch_size": 24,
            "num_epochs": 2,
            "num_iterations": 2,
            "normalize_observations": False,
        },
        **changes,
    )


def make(hyper_params):
    settings = ExperimentSettings()
    instance = build_scenario_instance(hyper_params, settings)
    trainer = build_trainer(hyper_params, instance, settings)
    trainer.initial_state()
    return trainer


def rollouts_of(trainer):
    with ExitStack() as stack:
        trainer._build_train_context(stack)
        return trainer._collect(0)


def test_illegal_actions_have_no_probability_entropy_or_gradient():
    space = AgentSpace(1, DiscreteActions((4,)))
    agent = ControlAgent("a", GymnasiumAgentParameters(), space)
    logits = torch.tensor([[5.0, 0.0, 0.0, 9.0]]).expand(2000, 4).clone().requires_grad_()
    legal = torch.tensor([[False, True, True, False]]).expand(2000, 4)
    distribution = distribution_of(agent, logits, legal)
    sampled = distribution.sample(torch.Generator().manual_seed(0))
    assert set(sampled.flatten().tolist()) == {1, 2}
    assert distribution.mode().unique().tolist() == [1]
    log_prob, entropy = distribution.log_prob_and_entropy(sampled)
    torch.testing.assert_close(log_prob, torch.full_like(log_prob, 0.5).log())
    torch.testing.assert_close(entropy, torch.full_like(entropy, 2.0).log())
    gradient = torch.autograd.grad(log_prob.sum() + entropy.sum(), logits)[0]
    assert gradient.isfinite().all()
    assert not gradient[:, [0, 3]].any()
    assert distribution_of(agent, logits, legal & False).mode().unique().tolist() == [3]


def test_a_reward_during_another_agents_move_belongs_to_an_agents_last_action():
    """Agents act in turn: 0 in steps 0 and 2, 1 in steps 1 and 3, which ends the episode."""
    reward = [[0.0, 0.0], [8.0, 0.0], [0.0, 0.0], [16.0, -16.0]]
    value = [[1.0, 99.0], [99.0, 2.0], [3.0, 99.0], [99.0, 4.0]]  # 99 must not be read
    acting = torch.tensor([[1, 0], [0, 1], [1, 0], [0, 1]]).bool()
    ends = torch.tensor([False, False, False, True])
    rollouts = TensorDict(
        {
            "agents": {"value": torch.tensor([value]), "active": acting.view(1, 4, 2, 1)},
            "next": {
                "done": ends.view(1, 4),
                "terminated": ends.view(1, 4),
                "agents": {"reward": torch.tensor([reward])},
            },
        },
        batch_size=[1, 4],
    )
    agents = MaskedGae(gamma=0.5, lmbda=0.5)(rollouts)["agents"]
    # agent 0: step 2 gets 0.5 · 16 = 8, that is 5 above its value of 3; step 0 gets 0.5 · 8 and
    # 0.5² · 3, that is 3.75 above its value of 1, and 0.25² of the 5
    assert agents["advantage"][0, 2, 0] == 5.0
    assert agents["advantage"][0, 0, 0] == 3.75 + 5.0 / 16
    # agent 1: step 3 gets −16 immediately, 20 below its value of 4; step 1 gets 0.5² · 4 = 1
    assert agents["advantage"][0, 3, 1] == -20.0
    assert agents["advantage"][0, 1, 1] == -1.0 - 20.0 / 16
    assert agents["learns"].equal(acting.unsqueeze(0))


def test_states_say_whose_turn_it_is_and_what_is_legal():
    environment = make(parameters()).train_environment
    td = environment.reset(torch.arange(4), torch.arange(4))
    starts = environment.dataset["seed"][:4] % 2
    assert td["agents", "active"].squeeze(-1).int().argmax(-1).equal(starts)
    td["agents", "action"] = torch.full((4, 2, 1), 2)
    td = environment.step(td)
    assert td["agents", "active"].squeeze(-1).int().argmax(-1).equal(1 - starts)
    assert td["agents", "legal"].tolist() == [[[True, True, False]] * 2] * 4


@pytest.mark.parametrize("action", [2, 3, -1])
def test_an_illegal_action_is_refused_except_of_an_idle_agent(action):
    environment = make(parameters()).train_environment
    td = environment.reset(torch.arange(4), torch.arange(4))
    td["agents", "action"] = torch.full((4, 2, 1), 2)
    td = environment.step(td)  # two sticks are left
    active = td["agents", "active"]
    td["agents", "action"] = torch.where(active, 1, action)
    assert environment.step(td)["done"].all()
    td["agents", "action"] = torch.where(active, action, 1)
    with pytest.raises(IllegalActionError, match=rf"action {action}, expected a legal one: \[0, 1"):
        environment.step(td)


@pytest.mark.parametrize(
    ("acting", "legal", "message"),
    [
        (torch.ones(3), None, "acting agents of the shape"),
        (torch.ones(2), torch.ones(2, 4), r"expected \(…, 2, 3\)"),
        (torch.ones(1), torch.ones(1, 2), "one discrete choice"),
    ],
)
def test_a_turn_must_fit_the_agents(acting, legal, message):
    sizes = {"a": (3,), "b": (2,)} if len(acting) > 1 else {"a": (2, 2)}
    spaces = AgentSpaces({name: AgentSpace(1, DiscreteActions(n)) for name, n in sizes.items()})
    with pytest.raises(ParameterError, match=message):
        check_turn(Turn(acting.bool(), None if legal is None else legal.bool()), spaces, "x")


def test_idle_agents_have_no_loss():
    trainer = make(parameters())
    frames = rollouts_of(trainer).reshape(-1)
    objective = trainer.components.loss_module
    objective.compute_gradients(frames, ExitStack())
    expected = [p.grad.clone() for p in trainer.combined_agents.parameters()]
    idle = ~frames["agents", "active"].squeeze(-1)
    assert idle.sum() == len(frames)
    for name in ("log_prob", "advantage", "value_target", "value"):
        frames["agents", name] = torch.where(idle, 7.0, frames["agents", name])
    trainer.combined_agents.zero_grad()
    objective.compute_gradients(frames, ExitStack())
    for parameter, before in zip(trainer.combined_agents.parameters(), expected, strict=True):
        assert parameter.grad.equal(before)


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["vanilla_ppo", "reinforce", "spg"])
def test_all_trainers_of_networks_learn_to_take_the_last_stick(trainer):
    sections = {
        "reinforce": {"reinforce": {"use_advantage_and_critic": True}},
        "spg": {"spg": {"stackelberg_sequence": [["first"], ["second"]]}},
    }
    hyper_params = parameters(trainer, **sections.get(trainer, {})).replace(
        {"rl.frames_per_batch": 200, "rl.minibatch_size": 100, "rl.lr": 0.02, "rl.num_epochs": 4}
    )
    trained = make(hyper_params)
    trained.run_iterations(0, 8)
    for sticks in (1, 2):  # the agents take all remaining sticks
        td = trained.train_environment.reset(torch.arange(1), torch.arange(1))
        td["agents", "observation"].fill_(sticks)
        td["agents", "legal"] = (torch.arange(1, 4) <= sticks).expand(1, 2, 3)
        trained.combined_agents.act(td, deterministic=True)
        assert td["agents", "action"].flatten().tolist() == [sticks - 1] * 2


def test_memories_read_every_step_alike_in_rollouts_and_in_training(tmp_path):
    """Also those of idle agents: rows are scored as played."""
    trainer = make(parameters(agent={"recurrence": "gru"}))
    rows = rollouts_of(trainer)
    log_prob, _, _ = trainer.combined_agents.score(rows)
    torch.testing.assert_close(log_prob.view(4, 12, 2), rows["agents", "log_prob"])
    memory, idle = rows["agents", "memory"], ~rows["agents", "active"].squeeze(-1)
    goes_on = ~rows["next", "done"][:, :-1, None]
    moved = (memory[:, 1:] != memory[:, :-1]).any(-1)
    assert moved[idle[:, :-1] & goes_on].all()
    uninterrupted, resumed = (make(parameters(agent={"recurrence": "gru"})) for _ in range(2))
    uninterrupted.run_iterations(0, 2)
    resumed.run_iterations(0, 1)
    resumed.state.save(tmp_path)
    resumed.state = resumed.State.load(tmp_path)
    resumed.run_iterations(1, 2)
    assert resumed.state == uninterrupted.state
