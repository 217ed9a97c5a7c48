"""Forced decisions replace the verifier's in every protocol."""

from __future__ import annotations

import itertools

import pytest
import torch

from ratchet.protocols.registry import PROTOCOLS

FORCED = {"zero": (0, 0), "one": (1, 1), "y": (0, 1)}  # for y = 0, 1
DECIDING = sorted(set(PROTOCOLS.names()) - {"environment"})  # without decisions
SEEDS = 4


def play(handler, said):
    """Play an episode for each (y, seed), in which all agents always say the same."""
    cases = list(itertools.product((0, 1), range(SEEDS)))
    y, seed = (torch.tensor(column) for column in zip(*cases, strict=True))
    shape = (len(cases), handler.num_agents)
    nobody = torch.zeros(len(cases), dtype=torch.bool)
    logits = torch.zeros(*shape, handler.num_channels, 1, 2)
    td = {
        "y": y,
        "seed": seed,
        "done": nobody,
        "terminated": nobody,
        ("agents", "done"): torch.zeros(shape, dtype=torch.bool),
        ("agents", "decision"): torch.full(shape, said),
        ("agents", "message_logits"): logits,
        ("agents", "decision_logits"): torch.zeros(*shape, 3),
    }
    reward, counted = torch.zeros(shape), torch.full(shape, 2)
    for round in range(handler.max_message_rounds):
        td["round"] = torch.full_like(y, round)
        counted = torch.where(td["agents", "done"], counted, handler.counted_decisions(td))
        step = handler.step_interaction_protocol(td)
        reward += step.reward
        td |= {"done": step.shared_done, "terminated": step.terminated}
        td["agents", "done"] = step.agent_done
    return td, counted, reward


@pytest.mark.parametrize("said", [0, 1, 2])
@pytest.mark.parametrize("force_guess", FORCED)
@pytest.mark.parametrize("zero_knowledge", [False, True])
@pytest.mark.parametrize("protocol", DECIDING)
def test_the_forced_value_is_the_decision(
    protocol, zero_knowledge, force_guess, said, make_handler
):
    handler = make_handler(
        protocol,
        protocol_common__force_guess=force_guess,
        protocol_common__zero_knowledge=zero_knowledge,
    )
    td, counted, reward = play(handler, said)
    assert td["done"].all()
    assert not td["terminated"].any()
    wanted = torch.tensor(FORCED[force_guess])[td["y"]]
    for verifier in handler.verifier_names:
        assert torch.equal(counted[:, handler.agent_index(verifier)], wanted)
    paid = reward[:, handler.agent_index("verifier")]
    assert torch.equal(paid, torch.where(wanted == td["y"], 1.0, -1.0))


@pytest.mark.parametrize("protocol", DECIDING)
def test_without_it_the_verifier_decides(protocol, make_handler):
    for said in (0, 1, 2):
        td, counted, _ = play(make_handler(protocol), said)
        assert bool(td["done"].all()) == (said != 2)
        assert counted.unique().tolist() == [said]
