"""Step sizes: base × agent × body × GNN factor, separately for actor and critic."""

from __future__ import annotations

import pytest
import torch

from ratchet.errors import ParameterError

BASE = 1e-3
FACTORS = {
    "agents__prover__agent_lr_factor": {"actor": 2.0, "critic": 3.0},
    "agents__prover__body_lr_factor": {"actor": 0.5, "critic": 0.25},
    "agents__prover__gnn_lr_factor": {"actor": 0.2, "critic": 0.4},
    "rl__body_lr_factor": {"actor": 1.5, "critic": 1.25},
}
SEPARATE = {
    "prover.gnn": 2 * 0.5 * 0.2 * 1.5,
    "prover.body": 2 * 0.5 * 1.5,
    "prover.policy": 2,
    "prover.value_gnn": 3 * 0.25 * 0.4 * 1.25,
    "prover.value_body": 3 * 0.25 * 1.25,
    "prover.value": 3,
    "verifier.gnn": 1.5,
    "verifier.body": 1.5,
    "verifier.policy": 1,
    "verifier.value_gnn": 1.25,
    "verifier.value_body": 1.25,
    "verifier.value": 1,
}
SHARED = {
    "prover.gnn": 2 * 0.5 * 0.2 * 1.5,
    "prover.body": 2 * 0.5 * 1.5,
    "prover.policy": 2,
    "prover.value": 2,
    "verifier.gnn": 1.5,
    "verifier.body": 1.5,
    "verifier.policy": 1,
    "verifier.value": 1,
}


def _one_step(tiny, shared, **changes):
    """Take one optimizer step; return the trainer and each group's largest change."""
    factors = {
        path: dict.fromkeys(factor, factor["actor"]) if shared else factor
        for path, factor in FACTORS.items()
    }
    trainer = tiny.trainer(
        tiny.parameters(
            **{
                **factors,
                "rl__lr": BASE,
                "rl__num_epochs": 1,
                "rl__minibatch_size": 1000,
                "rl__frames_per_batch": 128,
                "rl__use_shared_body": shared,
                **changes,
            }
        )
    )
    trainer.initial_state()
    groups = trainer.components.optimizer.param_groups
    before = {g["name"]: [p.detach().clone() for p in g["params"]] for g in groups}
    (stats,) = trainer.run_iterations(0, 1)
    moved = {
        g["name"]: max(
            float((p.detach() - old).abs().max())
            for p, old in zip(g["params"], before[g["name"]], strict=True)
        )
        for g in groups
    }
    return stats, moved


@pytest.mark.parametrize(("shared", "expected"), [(True, SHARED), (False, SEPARATE)])
def test_the_first_step_is_as_long_as_the_product_of_all_factors(tiny, shared, expected):
    """Adam's first step equals the learning rate for any gradient."""
    stats, moved = _one_step(tiny, shared)
    assert moved.keys() == expected.keys()
    for group, factor in expected.items():
        assert stats[f"{group}.lr"] == pytest.approx(BASE * factor, rel=1e-9), group
        assert moved[group] == pytest.approx(BASE * factor, rel=2e-3), group


def test_every_parameter_has_exactly_one_rate(tiny):
    for shared in (True, False):
        trainer = tiny.trainer(tiny.parameters(rl__use_shared_body=shared))
        groups = trainer.components.optimizer.param_groups
        ids = [id(param) for group in groups for param in group["params"]]
        assert len(ids) == len(set(ids))
        assert set(ids) == {id(param) for param in trainer.combined_agents.parameters()}


@pytest.mark.parametrize("path", sorted(FACTORS))
def test_a_shared_body_refuses_factors_that_disagree(tiny, path):
    with pytest.raises(ParameterError, match=r"expected equal factors, since rl\.use_shared_body"):
        tiny.trainer(tiny.parameters(**{path: FACTORS[path]}))


def test_a_frozen_iteration_changes_no_bit_of_body_heads_or_optimizer(tiny):
    """Off in the second iteration, with separate bodies for actor and critic."""
    schedule = {"kind": "contiguous_periodic", "period": 2, "start": 0, "stop": 1}
    trainer = tiny.trainer(
        tiny.parameters(agents__prover__update_schedule=schedule, rl__use_shared_body=False)
    )
    trainer.initial_state()
    trainer.run_iterations(0, 1)
    before = trainer.state
    trainer.run_iterations(1, 2)
    after = trainer.state
    for name, tensor in before.agents["prover"].items():
        assert torch.equal(after.agents["prover"][name], tensor), name
    mine = [name for name in before.optimizer if name.startswith("parts.prover.")]
    assert mine
    for name in mine:
        for key, tensor in before.optimizer[name].items():
            assert torch.equal(after.optimizer[name][key], tensor), (name, key)
    changed = [n for n, t in before.agents["verifier"].items() if len(t.shape) > 1]
    assert any(
        not torch.equal(before.agents["verifier"][n], after.agents["verifier"][n]) for n in changed
    )


def test_a_random_agent_says_each_symbol_with_the_same_probability(tiny):
    trainer = tiny.trainer(tiny.parameters(agents__prover__is_random=True))
    trainer.initial_state()
    rollouts = trainer.sample_rollouts(0)
    place = trainer.agent_names.index("prover")
    acts = rollouts["agents", "active"][:, :, place].any(-1)
    logits = rollouts["agents", "message_logits"][:, :, place][acts]
    assert len(logits) > 0
    for row in logits.flatten(0, -2):
        possible = row[row.isfinite()]
        assert (possible == possible[0]).all()
        assert len(possible) in (3, 4, 6, 8), "existing nodes, of one graph or both"
    groups = trainer.components.optimizer.param_groups
    assert not any(group["name"].startswith("prover.") for group in groups)
    assert "prover" not in trainer.pretrained_agent_names(
        tiny.parameters(agents__prover__is_random=True, pretrain_agents=True)
    )
