"""Each protocol's agents, channels, order of play and rounds match these tables.

A row of an order of play is one round: the agents that act in each channel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

ALL3 = ("prover0", "prover1", "verifier")
TWO_CHANNELS = ("prover0_channel", "prover1_channel")
P, V = {"prover:main"}, {"verifier:main"}
P0, P1 = {"prover0:prover0_channel"}, {"prover1:prover1_channel"}
VV = {"verifier:prover0_channel", "verifier:prover1_channel"}
SEES_ALL = {f"{a}:{c}" for a in ALL3 for c in TWO_CHANNELS}
SEES_OWN = {*P0, *P1, *VV}
TEST_PERIOD = [
    {"prover1:main", "prover0:prover_chat"},
    {"prover2:main", "prover0:prover0_verifier", "prover1:prover_chat"},
    {"verifier:main", "verifier:prover0_verifier", "prover2:prover_chat"},
]


@dataclass(frozen=True)
class Expected:
    protocol: str
    agents: tuple[str, ...]
    channels: tuple[str, ...]
    sees: set[str]
    order: list[set[str]]  # for an even seed
    questions: int
    min_rounds: int = 1
    odd_seed_order: list[set[str]] | None = None
    changes: dict[str, Any] = field(default_factory=dict)


def nip(order: list[set[str]], questions: int, **changes: Any) -> Expected:
    return Expected(
        "nip", ("prover", "verifier"), ("main",), P | V, order, questions, changes=changes
    )


def two(protocol: str, order: list[set[str]], questions: int, **changes: Any) -> Expected:
    sees = SEES_ALL if protocol == "debate" else SEES_OWN
    changes = {key.replace("own__", f"{protocol}_protocol__"): v for key, v in changes.items()}
    return Expected(protocol, ALL3, TWO_CHANNELS, sees, order, questions, changes=changes)


PROVERS = P0 | P1
SECOND = {"protocol_common__verifier_first": False}
EXPECTED = [
    nip([V, P] * 4, 4),
    nip([P, V] * 4, 4, **SECOND),
    nip([V, P, V, P, V], 3, nip_protocol__max_message_rounds=5),
    nip([P, V, P, V, P], 2, nip_protocol__max_message_rounds=5, **SECOND),
    Expected("adp", ("prover", "verifier"), ("main",), P | V, [P, V], 1),
    Expected("adp", ("prover", "verifier"), ("main",), P | V, [P, V], 1, changes=SECOND),
    *(
        expected
        for protocol in ("debate", "mnip")
        for expected in (
            two(protocol, [VV, PROVERS] * 4, 4),
            two(protocol, [PROVERS, VV] * 4, 4, **SECOND),
            two(protocol, [VV, P0, P1, VV, P0, P1, VV, P0], 3, own__sequential=True),
            two(protocol, [P0, P1, VV, P0, P1, VV, P0, P1], 2, own__sequential=True, **SECOND),
            two(
                protocol,
                [VV, P1, P0, VV],
                2,
                own__sequential=True,
                own__prover0_first=False,
                own__max_message_rounds=4,
            ),
        )
    ),
    Expected(
        "merlin_arthur",
        ALL3,
        ("main",),
        {f"{a}:main" for a in ALL3},
        [{"prover0:main"}, V],
        1,
        odd_seed_order=[{"prover1:main"}, V],
    ),
    Expected("solo_verifier", ("verifier",), ("main",), V, [V], 1),
    Expected(
        "multi_channel_test",
        ("prover0", "prover1", "prover2", "verifier"),
        ("main", "prover0_verifier", "prover_chat"),
        {
            *(f"{a}:main" for a in ("prover0", "prover1", "prover2", "verifier")),
            *(f"{a}:prover0_verifier" for a in ("prover0", "verifier")),
            *(f"{a}:prover_chat" for a in ("prover0", "prover1", "prover2")),
        },
        (TEST_PERIOD * 3)[:8],
        4,
        min_rounds=2,
    ),
]


def written(handler, mask: torch.Tensor) -> set[str]:
    """Write bool[A, C] as a set of "agent:channel"."""
    return {
        f"{handler.agent_names[a]}:{handler.message_channel_names[c]}"
        for a, c in mask.nonzero().tolist()
    }


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda e: f"{e.protocol}-{len(e.order)}")
def test_protocol_is_as_written_in_its_table(expected: Expected, make_handler) -> None:
    handler = make_handler(expected.protocol, **expected.changes)
    assert tuple(handler.agent_names) == expected.agents
    assert tuple(handler.message_channel_names) == expected.channels
    assert {f"{a}:{c}" for a, c in handler.agent_channel_visibility} == expected.sees
    assert written(handler, handler.channel_visibility_mask) == expected.sees
    assert handler.max_message_rounds == len(expected.order)
    assert handler.min_message_rounds == expected.min_rounds
    assert handler.max_verifier_questions == expected.questions
    assert list(handler.prover_names) == [n for n in expected.agents if n.startswith("prover")]
    assert list(handler.verifier_names) == ["verifier"]

    odd = expected.odd_seed_order or expected.order
    rounds = torch.arange(len(odd)).repeat(2, 1)
    seeds = torch.tensor([[6], [7]])
    masks = handler.get_active_agents_mask_from_rounds_and_seed(rounds, seeds)
    guess = handler.get_verifier_guess_mask_from_rounds_and_seed(rounds, seeds)
    decides = handler.get_can_decide_mask_from_rounds_and_seed(rounds, seeds)
    for row, order in enumerate((expected.order, odd)):
        assert [written(handler, mask) for mask in masks[row]] == order
        has_verifier = [any(p.startswith("verifier") for p in pairs) for pairs in order]
        assert guess[row].tolist() == has_verifier
        assert decides[row, :, handler.agent_index("verifier")].tolist() == has_verifier
        assert not decides[row, :, [handler.agent_index(n) for n in handler.prover_names]].any()

    either = [even | other for even, other in zip(expected.order, odd, strict=True)]
    assert [written(handler, mask) for mask in handler.can_be_active_mask] == either
    for agent in expected.agents:
        active = [any(p.startswith(f"{agent}:") for p in pairs) for pairs in either]
        assert handler.agent_first_active_round[agent] == active.index(True)


def test_nobody_acts_after_the_last_round(make_handler) -> None:
    for name in ("nip", "merlin_arthur", "multi_channel_test"):
        handler = make_handler(name)
        rounds = torch.arange(handler.max_message_rounds, handler.max_message_rounds + 3)
        assert not handler.get_active_agents_mask_from_rounds_and_seed(rounds, 0).any()


def test_rounds_and_seeds_may_be_numbers_or_numpy_and_broadcast(make_handler) -> None:
    handler = make_handler("merlin_arthur")
    assert handler.get_active_agents_mask_from_rounds_and_seed(0, 1).shape == (3, 1)
    seeds = torch.arange(6).reshape(2, 3)
    masks = handler.get_active_agents_mask_from_rounds_and_seed(0, seeds.numpy())
    assert masks.shape == (2, 3, 3, 1)
    assert masks[..., 0, 0].tolist() == [[True, False, True], [False, True, False]]


def test_an_agent_that_is_never_active_has_the_first_round_after_the_end(make_handler) -> None:
    handler = make_handler("nip", nip_protocol__max_message_rounds=1)
    assert handler.agent_first_active_round == {"prover": 1, "verifier": 0}


def test_channel_order_is_random_for_two_channels_unless_switched_off(make_handler) -> None:
    assert make_handler("debate").randomize_channel_order
    assert not make_handler(
        "mnip", mnip_protocol__randomize_channel_order=False
    ).randomize_channel_order
    assert not make_handler("nip").randomize_channel_order


def test_stackelberg_sequence_puts_the_verifiers_first(make_handler) -> None:
    sequences = {
        name: make_handler(name).stackelberg_sequence
        for name in ("nip", "debate", "solo_verifier", "multi_channel_test")
    }
    assert sequences == {
        "nip": (("verifier",), ("prover",)),
        "debate": (("verifier",), ("prover0", "prover1")),
        "solo_verifier": (("verifier",),),
        "multi_channel_test": (("verifier",), ("prover0", "prover1", "prover2")),
    }
