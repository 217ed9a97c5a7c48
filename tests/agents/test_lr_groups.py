"""Learning-rate factors: each parameter in one group, with the product of its factors."""

from __future__ import annotations

import pytest
import torch

from ratchet.errors import ParameterError

FACTORS = {
    "agent_lr_factor": {"actor": 2.0, "critic": 3.0},
    "body_lr_factor": {"actor": 5.0, "critic": 7.0},
    "gnn_lr_factor": {"actor": 11.0, "critic": 13.0},
}
RL = {"body_lr_factor": {"actor": 17.0, "critic": 19.0}, "use_shared_body": False}


def test_factors_multiply_by_part_for_actor_and_critic(new_game):
    game = new_game(rl=RL, agents={"prover": FACTORS})
    groups = {g.name: g.lr_factor for g in game.agents.parameter_groups(game.hyper_params.rl)}
    assert {k: v for k, v in groups.items() if k.startswith("prover.")} == {
        "prover.gnn": 2 * 5 * 11 * 17,
        "prover.body": 2 * 5 * 17,
        "prover.policy": 2,
        "prover.value_gnn": 3 * 7 * 13 * 19,
        "prover.value_body": 3 * 7 * 19,
        "prover.value": 3,
    }
    assert groups["verifier.gnn"] == 17
    assert groups["verifier.value_body"] == 19


@pytest.mark.parametrize("shared", [True, False])
def test_each_parameter_is_in_exactly_one_group(new_game, shared):
    game = new_game(rl={"use_shared_body": shared})
    groups = game.agents.parameter_groups(game.hyper_params.rl)
    ids = [id(p) for group in groups for p in group.params]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(p) for p in game.agents.parameters()}


def test_solo_groups_have_the_body_and_the_solo_head_only(new_game):
    body, gnn = {"actor": 5.0, "critic": 5.0}, {"actor": 7.0, "critic": 7.0}
    factors = {"body_lr_factor": body, "gnn_lr_factor": gnn}
    game = new_game(pretrain_agents=True, agents={"prover": factors})
    rl = game.hyper_params.rl
    with_factor = game.agents.parameter_groups(rl, solo=True)
    without = game.agents.parameter_groups(rl, solo=True, solo_body_factor=False)
    assert {g.part for g in with_factor} == {"gnn", "body", "solo"}
    factor = {g.name: g.lr_factor for g in with_factor}
    assert factor["prover.gnn"] == 5 * 7
    assert factor["prover.body"] == 5
    assert factor["prover.solo"] == 1
    assert {g.lr_factor for g in without if g.name != "prover.gnn"} == {1.0}
    assert {g.lr_factor for g in without if g.name == "prover.gnn"} == {7.0}


@pytest.mark.parametrize("field", ["agent_lr_factor", "body_lr_factor", "gnn_lr_factor"])
def test_a_shared_body_refuses_factors_that_differ(new_game, field):
    with pytest.raises(ParameterError, match=rf"agents\.prover\.{field}.*actor=1.*critic=2"):
        new_game(agents={"prover": {field: {"actor": 1, "critic": 2}}})


def test_normalizer_shifts_and_scales_by_one_number_a_key(new_game):
    game = new_game()
    frames = torch.stack(game.play(size=40, steps=3)[1:])
    game.agents.normalizer.fit(frames)
    normed = game.agents.normalizer("x", frames["x"])
    assert normed.mean().abs() < 1e-5
    assert (normed.std(correction=0) - 1).abs() < 1e-4
    assert normed.unique().numel() == 2
    assert "normalizer.x_mean" in game.agents.state_dict()
