"""Agents that learn, their rates, and agents that stay unchanged bit for bit."""

from __future__ import annotations

import itertools

import pytest
import torch

from trainers.tensordict.optimization.optimizer import learning_rate_scale
from trainers.tensordict.states.state import State


def _same(one: State, other: State, agent: str) -> tuple[bool, bool]:
    """Return whether an agent's weights and optimizer state are equal bit by bit."""
    weights = State(agents={agent: one.agents[agent]}) == State(agents={agent: other.agents[agent]})
    kept = [
        {n: t for n, t in s.optimizer.items() if n.startswith(f"parts.{agent}.")}
        for s in (one, other)
    ]
    return weights, State(optimizer=kept[0]) == State(optimizer=kept[1])


def test_an_agent_that_is_off_stays_the_same_bit_for_bit(tiny):
    schedule = {"kind": "alternating_periodic", "period": 1, "first_agent": "prover"}
    trainer = tiny.trainer(tiny.parameters(agents___default__update_schedule=schedule))
    states = [trainer.initial_state()]
    for iteration in range(3):
        trainer.run_iterations(iteration, iteration + 1)
        states.append(trainer.state)
    for iteration, (before, after) in enumerate(itertools.pairwise(states)):
        on, off = ("prover", "verifier") if iteration % 2 == 0 else ("verifier", "prover")
        assert _same(before, after, off) == (True, True), iteration
        assert _same(before, after, on) == (False, False), iteration


def test_agents_learn_for_as_many_iterations_as_their_block_has(tiny):
    blocks = [
        {"agents": ["prover"], "num_iterations": 2},
        {"agents": ["verifier"], "num_iterations": 1},
    ]
    schedule = {"kind": "alternating_blocks", "blocks": blocks}
    trainer = tiny.trainer(tiny.parameters(agents___default__update_schedule=schedule))
    states = [trainer.initial_state()]
    for iteration in range(3):
        trainer.run_iterations(iteration, iteration + 1)
        states.append(trainer.state)
    learned = [
        [name for name in ("prover", "verifier") if not _same(before, after, name)[0]]
        for before, after in itertools.pairwise(states)
    ]
    assert learned == [["prover"], ["prover"], ["verifier"]]


def test_an_agent_that_is_off_stays_the_same_even_if_the_loss_counts_it(tiny):
    schedule = {"kind": "alternating_periodic", "period": 1, "first_agent": "prover"}
    trainer = tiny.trainer(tiny.parameters(agents___default__update_schedule=schedule))
    trainer.initial_state()
    trainer.components.loss_module.select_agents = lambda names: None
    for iteration in range(2):
        before = trainer.state
        trainer.run_iterations(iteration, iteration + 1)
        off = "verifier" if iteration % 2 == 0 else "prover"
        assert _same(before, trainer.state, off) == (True, True)


def test_every_parameter_of_an_agent_that_is_on_learns_from_one_iteration(tiny):
    trainer = tiny.trainer(tiny.parameters(rl__frames_per_batch=128))
    before = trainer.initial_state()
    trainer.run_iterations(0, 1)
    for agent, tensors in trainer.state.agents.items():
        for name, tensor in tensors.items():
            assert not torch.equal(tensor, before.agents[agent][name]), f"{agent}.{name}"


def test_learning_rates_are_products_of_factors(tiny):
    trainer = tiny.trainer(
        tiny.parameters(
            rl__lr=0.01,
            rl__body_lr_factor={"actor": 0.5, "critic": 0.5},
            agents__prover__agent_lr_factor={"actor": 3.0, "critic": 3.0},
            agents__prover__gnn_lr_factor={"actor": 0.1, "critic": 0.1},
        )
    )
    trainer.initial_state()
    (stats,) = trainer.run_iterations(0, 1)
    assert stats["prover.gnn.lr"] == pytest.approx(0.01 * 3 * 0.5 * 0.1)
    assert stats["prover.body.lr"] == pytest.approx(0.01 * 3 * 0.5)
    assert stats["prover.policy.lr"] == pytest.approx(0.01 * 3)
    assert stats["verifier.value.lr"] == pytest.approx(0.01)


def test_a_rate_of_zero_moves_nothing(tiny):
    zero = {"actor": 0.0, "critic": 0.0}
    trainer = tiny.trainer(tiny.parameters(agents__verifier__agent_lr_factor=zero))
    before = trainer.initial_state()
    trainer.run_iterations(0, 1)
    assert _same(before, trainer.state, "verifier")[0]
    assert not _same(before, trainer.state, "prover")[0]


@pytest.mark.parametrize(
    ("trainer", "off", "protocol"),
    [
        ("vanilla_ppo", "verifier", "nip"),
        ("reinforce", "verifier", "nip"),
        ("spg", "prover0", "mnip"),
    ],
)
def test_a_rate_of_zero_is_off(tiny, trainer, off, protocol):
    """No gradient, no part in the clipped norm, and not among the learning agents."""
    zero = {"actor": 0.0, "critic": 0.0}
    changes = {f"agents__{off}__agent_lr_factor": zero, "interaction_protocol": protocol}
    made = tiny.trainer(tiny.parameters(trainer=trainer, rl__num_epochs=1, **changes))
    before = made.initial_state()
    parts, seen = made.components, []
    assert off not in parts.freezer.learning_agents(0)
    params = list(parts.agents.parts[off].parameters())
    step = parts.optimizer.step

    def watched():
        learning = [p for g in parts.optimizer.param_groups for p in g["params"]]
        grads = [p.grad for p in learning if p.grad is not None]
        seen.append(torch.stack([grad.norm() for grad in grads]).norm().item())
        assert all(param.grad is None for param in params)
        return step()

    parts.optimizer.step = watched
    made.run_iterations(0, 1)
    assert seen
    assert _same(before, made.state, off) == (True, True)
    assert parts.loss_module.learning_agents is not None
    assert off not in parts.loss_module.learning_agents
    assert all(param.requires_grad for param in params), "they are unfrozen for others"


def test_a_part_with_a_rate_of_zero_is_off_while_the_others_learn(tiny):
    zero = {"actor": 0.0, "critic": 0.0}
    trainer = tiny.trainer(tiny.parameters(agents__prover__body_lr_factor=zero))
    before = trainer.initial_state()
    trainer.run_iterations(0, 1)
    after = trainer.state
    for name, tensor in before.agents["prover"].items():
        assert torch.equal(tensor, after.agents["prover"][name]) == name.startswith("body."), name
    kept = {n for n in after.optimizer if n.startswith("parts.prover.")}
    assert kept
    assert not any(name.startswith("parts.prover.body") for name in kept)


def test_an_agent_with_a_rate_of_zero_is_not_clipped_with_the_others(tiny):
    """The other agent's step is the same as without the frozen agent."""
    off = {"agents__verifier__agent_lr_factor": {"actor": 0.0, "critic": 0.0}}
    never = {"kind": "contiguous_periodic", "period": 2, "start": 1, "stop": 2}
    ends = []
    for changes in (off, {"agents__verifier__update_schedule": never}):
        trainer = tiny.trainer(tiny.parameters(rl__max_grad_norm=1e-3, **changes))
        trainer.initial_state()
        trainer.run_iterations(0, 1)
        ends.append(trainer.state.agents["prover"])
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_pretraining_with_a_rate_of_zero_moves_nothing_and_does_no_harm(tiny):
    zero = {"actor": 0.0, "critic": 0.0}
    changes = {"pretrain_agents": True, "agents__prover__agent_lr_factor": zero}
    trainer = tiny.trainer(tiny.parameters(**changes))
    before = trainer.initial_state().agents["prover"]
    found = trainer.pretrain("prover").weights
    assert all(torch.equal(found[name], before[name]) for name in found)
    over = tiny.parameters(
        pretrain_agents=True,
        agents__prover__body_lr_factor=zero,
        solo_agent__body_lr_factor_override=True,
    )
    trainer = tiny.trainer(over)
    before = trainer.initial_state().agents["prover"]
    trainer.run_iterations(0, 1)
    found = trainer.pretrain("prover").weights
    body = [name for name in found if name.startswith("body.")]
    assert any(not torch.equal(found[name], before[name]) for name in body)


def test_adam_has_the_epsilon_that_is_asked_for(tiny):
    assert tiny.trainer(tiny.parameters()).components.optimizer.defaults["eps"] == 1e-5
    trainer = tiny.trainer(tiny.parameters(rl__adam_eps=0.5))
    assert {group["eps"] for group in trainer.components.optimizer.param_groups} == {0.5}
    solo = tiny.trainer(tiny.parameters(trainer="solo_agent", rl__adam_eps=0.25))
    assert solo.learner.optimizer.defaults["eps"] == 0.25


def test_an_annealed_rate_falls_linearly_to_zero(tiny):
    assert learning_rate_scale(3, 4, anneal=False) == 1.0
    assert [learning_rate_scale(i, 4, anneal=True) for i in range(4)] == [1, 0.75, 0.5, 0.25]
    trainer = tiny.trainer(tiny.parameters(rl__anneal_lr=True))
    trainer.initial_state()
    rates = [stats["prover.value.lr"] for stats in trainer.run_iterations(0, 3)]
    assert rates == pytest.approx([0.003, 0.002, 0.001])


def test_gradients_are_clipped(tiny):
    trainer = tiny.trainer(tiny.parameters(rl__max_grad_norm=1e-3, rl__num_epochs=1))
    trainer.initial_state()
    norms = []
    optimizer = trainer.components.optimizer
    step = optimizer.step

    def watched():
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        norms.append(torch.stack([grad.norm() for grad in grads]).norm().item())
        return step()

    optimizer.step = watched
    (stats,) = trainer.run_iterations(0, 1)
    assert len(norms) == 3  # 32 frames in minibatches of at most 12
    assert all(norm == pytest.approx(1e-3, rel=1e-3) for norm in norms)
    assert stats["grad_norm"] > 1e-2


def test_random_agents_have_nothing_to_learn_and_do_no_harm(tiny):
    trainer = tiny.trainer(tiny.parameters(agents__prover__is_random=True))
    before = trainer.initial_state()
    trainer.run_iterations(0, 1)
    assert trainer.state.agents["prover"] == {}
    assert not _same(before, trainer.state, "verifier")[0]


def test_nobody_learns_when_all_are_random(tiny):
    trainer = tiny.trainer(tiny.parameters(agents___default__is_random=True))
    trainer.initial_state()
    (stats,) = trainer.run_iterations(0, 1)
    assert stats["grad_norm"] == 0.0
    assert 0.0 <= stats["verifier.accuracy"] <= 1.0


@pytest.mark.parametrize("shared", [True, False])
def test_every_parameter_of_the_body_and_solo_head_learns_from_one_step(tiny, shared):
    hyper_params = tiny.parameters(
        pretrain_agents=True,
        solo_agent__num_epochs=1,
        solo_agent__batch_size=100,
        rl__use_shared_body=shared,
    )
    trainer = tiny.trainer(hyper_params)
    before = trainer.initial_state()
    for agent in trainer.pretrained_agent_names(trainer.hyper_params):
        result = trainer.pretrain(agent)
        assert {name.partition(".")[0] for name in result.weights} == {"body", "solo_head"}
        for name, tensor in result.weights.items():
            was = before.agents[agent][name]
            if "transformer" in name and tensor.dim() == 1:
                assert not torch.equal(tensor, was), f"{agent}.{name}"
            else:  # every single number
                assert (tensor != was).all(), f"{agent}.{name}"
        trainer.load_pretrained(agent, result)
        after = trainer.state.agents[agent]
        for name, tensor in after.items():
            part, _, rest = name.partition(".")
            if part == "value_body":
                assert torch.equal(tensor, result.weights[f"body.{rest}"])
            elif part in ("policy_head", "value_head"):
                assert torch.equal(tensor, before.agents[agent][name])


def test_pretraining_learns_the_labels(tiny):
    hyper_params = tiny.parameters(
        pretrain_agents=True, solo_agent__num_epochs=60, solo_agent__learning_rate=0.01
    )
    trainer = tiny.trainer(hyper_params)
    trainer.initial_state()
    result = trainer.pretrain("verifier")
    assert len(result.metrics) == 60
    assert (
        result.metrics[-1]["verifier.train_loss"] < 0.8 * result.metrics[0]["verifier.train_loss"]
    )
    assert result.table["datapoint_id"] == list(range(10))
