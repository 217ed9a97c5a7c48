"""A protocol that contradicts itself is refused when it is built; any other plays by its rule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.errors import ProtocolSpecificationError, UnknownNameError
from ratchet.protocols import DeterministicSingleVerifierProtocolHandler

AGENTS = ("prover", "verifier", "clerk")
CHANNELS = ("main", "side")
PAIRS = [(a, c) for a in AGENTS for c in CHANNELS]

pairs = st.frozensets(st.sampled_from(PAIRS))


class Base(DeterministicSingleVerifierProtocolHandler):
    agent_names = AGENTS
    message_channel_names = CHANNELS
    max_message_rounds = 3

    def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        return False


def made(**members: Any) -> type[Base]:
    return type("Made", (Base,), members)


def ruled_by(order: list[frozenset[tuple[str, str]]], visible: frozenset) -> type[Base]:
    def is_agent_active(self: Base, agent_name: str, round: int, channel_name: str) -> bool:
        return (agent_name, channel_name) in order[round]

    return made(
        max_message_rounds=len(order),
        agent_channel_visibility=visible,
        is_agent_active=is_agent_active,
    )


@settings(max_examples=100, deadline=None)
@given(order=st.lists(pairs, min_size=1, max_size=4), visible=pairs)
def test_no_agent_ever_acts_in_a_channel_it_cannot_see(make_parameters, order, visible) -> None:
    handler_class = ruled_by(order, visible)
    blind = {
        (agent, round, channel)
        for round, active in enumerate(order)
        for agent, channel in active - visible
    }
    if not blind:
        handler = handler_class(make_parameters("nip"))
        rounds = torch.arange(len(order))
        mask = handler.get_active_agents_mask_from_rounds_and_seed(rounds, rounds)
        assert not (mask & ~handler.channel_visibility_mask).any()
        assert [{(AGENTS[a], CHANNELS[c]) for a, c in m.nonzero().tolist()} for m in mask] == order
        return
    with pytest.raises(ProtocolSpecificationError) as error:
        handler_class(make_parameters("nip"))
    message = str(error.value)
    assert any(
        f"{agent!r}" in message and f"round {round}" in message and f"{channel!r}" in message
        for agent, round, channel in blind
    )


@settings(max_examples=30, deadline=None)
@given(
    protocol=st.sampled_from(["nip", "adp", "debate", "merlin_arthur", "mnip", "solo_verifier"]),
    round=st.integers(0, 20),
    seed=st.integers(0, 2**62),
    zero_knowledge=st.booleans(),
    verifier_first=st.booleans(),
)
def test_built_in_play_keeps_to_what_can_be_and_can_be_seen(
    make_handler, protocol, round, seed, zero_knowledge, verifier_first
) -> None:
    handler = make_handler(
        protocol,
        protocol_common__zero_knowledge=zero_knowledge,
        protocol_common__verifier_first=verifier_first,
    )
    mask = handler.get_active_agents_mask_from_rounds_and_seed(round, seed)
    assert not (mask & ~handler.channel_visibility_mask).any()
    if round < handler.max_message_rounds:
        assert not (mask & ~handler.can_be_active_mask[round]).any()
        assert mask.any()
    else:
        assert not mask.any()


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"agent_names": ("prover",)}, "exactly one agent"),
        ({"agent_names": ("verifier", "second_verifier")}, "second_verifier"),
        ({"agent_names": ("verifier", "verifier")}, "each once"),
        ({"agent_names": "verifier"}, "agent_names"),
        ({"message_channel_names": ()}, "message_channel_names"),
        ({"agent_channel_visibility": {("prover", "mian")}}, "'mian'"),
        ({"agent_channel_visibility": {("porver", "main")}}, "'porver'"),
        ({"max_message_rounds": 0}, "got 1 and 0"),
        ({"min_message_rounds": 4}, "got 4 and 3"),
        ({"prover_paid_decisions": {"clerk": 1}}, "'clerk'"),
        ({"prover_paid_decisions": {"prover": 2}}, "'prover': 2"),
    ],
)
def test_a_contradiction_is_named(make_parameters, members, said) -> None:
    with pytest.raises(ProtocolSpecificationError, match=said):
        made(**members)(make_parameters("nip"))


def test_more_than_two_provers_must_say_who_is_paid(make_parameters) -> None:
    names = ("prover0", "prover1", "prover2", "verifier")
    with pytest.raises(ProtocolSpecificationError, match="3 provers"):
        made(agent_names=names)(make_parameters("nip"))
    paid = {"prover0": 1, "prover2": 0}
    assert made(agent_names=names, prover_paid_decisions=paid)(make_parameters("nip"))


def test_a_check_waits_for_the_authors_own_init(make_parameters) -> None:
    class WithState(Base):
        def __init__(self, hyper_params: Any) -> None:
            super().__init__(hyper_params)
            self.speaker = "verifier"

        def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
            return agent_name == self.speaker

    assert WithState(make_parameters("nip")).can_be_active_mask[:, 1].all()


def test_unknown_agents_and_channels_get_the_nearest_name(make_handler) -> None:
    handler = make_handler("debate")
    with pytest.raises(UnknownNameError, match="Did you mean 'prover0'"):
        handler.agent_index("prver0")
    with pytest.raises(UnknownNameError, match="Did you mean 'prover1_channel'"):
        handler.channel_index("prover1_chanel")
    with pytest.raises(UnknownNameError, match="verifer"):
        handler.reward_mid_point_estimate("verifer")


def test_an_agent_that_is_neither_prover_nor_verifier_is_unpaid(make_parameters) -> None:
    def always(self: Base, agent_name: str, round: int, channel_name: str) -> bool:
        return True

    handler = made(is_agent_active=always)(make_parameters("nip"))
    step = handler.step_interaction_protocol(
        {
            "round": torch.tensor([0]),
            "seed": torch.tensor([0]),
            "y": torch.tensor([1]),
            "done": torch.tensor([False]),
            "terminated": torch.tensor([False]),
            ("agents", "done"): torch.zeros(1, 3, dtype=torch.bool),
            ("agents", "decision"): torch.tensor([[0, 1, 0]]),
        }
    )
    assert step.reward.tolist() == [[1.0, 1.0, 0.0]]
    assert handler.reward_mid_point_estimate("clerk") == 0.0
    assert handler.stackelberg_sequence == (("verifier",), ("prover", "clerk"))
