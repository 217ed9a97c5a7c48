"""A step pays, ends and leaves alone what a slow judge of one episode says.

The judge is written from the rules alone and shares no code with the handlers.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

NUMBERS = {
    "prover_reward": 3.0,
    "verifier_reward": 5.0,
    "verifier_incorrect_penalty": -7.0,
    "verifier_terminated_penalty": -11.0,
    "verifier_no_guess_reward": 0.25,
}
GAMES: dict[str, dict[str, Any]] = {
    "nip": {"nip_protocol__max_message_rounds": 5, "nip_protocol__min_message_rounds": 3},
    "adp": {},
    "debate": {"debate_protocol__max_message_rounds": 4, "debate_protocol__min_message_rounds": 2},
    "debate sequential": {
        "debate_protocol__sequential": True,
        "debate_protocol__max_message_rounds": 5,
    },
    "merlin_arthur": {},
    "mnip": {"mnip_protocol__max_message_rounds": 4},
    "mnip sequential": {"mnip_protocol__sequential": True},
    "solo_verifier": {},
    "multi_channel_test": {},
}
ROUNDS = {
    "nip": (5, 3),
    "adp": (2, 1),
    "debate": (4, 2),
    "debate sequential": (5, 1),
    "merlin_arthur": (2, 1),
    "mnip": (4, 1),
    "mnip sequential": (8, 1),
    "solo_verifier": (1, 1),
    "multi_channel_test": (8, 2),
}
PAID_FOR: dict[str, list[int | None]] = {
    "nip": [1],
    "adp": [1],
    "debate": [0, 1],
    "merlin_arthur": [0, 1],
    "mnip": [1, 1],
    "solo_verifier": [],
    "multi_channel_test": [None, None, None],
}


def is_verifiers_turn(game: str, round: int, verifier_first: bool) -> bool:
    if game in ("adp", "merlin_arthur"):
        return round == 1
    if game == "solo_verifier":
        return True
    if game == "multi_channel_test":
        return round % 3 == 2
    if game.endswith("sequential"):
        return round % 3 == (0 if verifier_first else 2)
    return round % 2 == (0 if verifier_first else 1)


def judge(game: str, common: dict[str, Any], episode: dict[str, Any]) -> tuple:
    """Return (done, terminated, rewards) after one step of one episode."""
    max_rounds, min_rounds = ROUNDS[game]
    paid_for = PAID_FOR[game.split()[0]]
    done, terminated = episode["done"], episode["terminated"]
    if done or terminated:
        return done, terminated, [0.0] * (len(paid_for) + 1)
    round, y, decision = episode["round"], episode["y"], episode["decision"]
    turn = is_verifiers_turn(game, round, common["verifier_first"])
    decision = {None: decision, "zero": 0, "one": 1, "y": y}[common["force_guess"]]
    decided = turn and decision != 2 and round >= min_rounds - 1
    if decided:
        done = True
        right = decision == y
        verifier = common["verifier_reward" if right else "verifier_incorrect_penalty"]
    elif round >= max_rounds - 1:
        terminated = True
        verifier = common["verifier_terminated_penalty"]
    else:
        verifier = common["verifier_no_guess_reward"] if turn else 0.0
    provers = []
    for wanted in paid_for:
        if wanted is None:
            provers.append(0.0)
        elif common["shared_reward"]:
            provers.append(verifier)
        else:
            provers.append(common["prover_reward"] if decided and decision == wanted else 0.0)
    return done, terminated, [*provers, verifier]


def step_inputs(episodes: list[dict[str, Any]], num_agents: int) -> dict[Any, np.ndarray]:
    """Stack episodes; decisions of agents other than the verifier are noise."""
    column = {key: np.array([e[key] for e in episodes]) for key in episodes[0]}
    decision = np.random.default_rng(0).integers(3, size=(len(episodes), num_agents))
    decision[:, -1] = column.pop("decision")
    ended = column["done"] | column["terminated"]
    return {
        **column,
        ("agents", "decision"): decision,
        ("agents", "done"): np.repeat(ended[:, None], num_agents, 1),
    }


@pytest.mark.parametrize("verifier_first", [True, False])
@pytest.mark.parametrize("shared_reward", [True, False])
@pytest.mark.parametrize("force_guess", [None, "zero", "one", "y"])
@pytest.mark.parametrize("game", GAMES)
def test_every_state_is_judged_as_by_the_slow_judge(
    game, force_guess, shared_reward, verifier_first, make_handler
) -> None:
    common = {
        **NUMBERS,
        "verifier_first": verifier_first,
        "shared_reward": shared_reward,
        "force_guess": force_guess,
    }
    handler = make_handler(
        game.split()[0], **GAMES[game], **{f"protocol_common__{k}": v for k, v in common.items()}
    )
    assert (handler.max_message_rounds, handler.min_message_rounds) == ROUNDS[game]
    keys = ("round", "seed", "y", "decision", "done", "terminated")
    values = (range(ROUNDS[game][0]), (4, 5), (0, 1), (0, 1, 2), (False, True), (False, True))
    episodes = [dict(zip(keys, row, strict=True)) for row in itertools.product(*values)]
    inputs = step_inputs(episodes, handler.num_agents)

    shared_done, agent_done, terminated, reward = handler.step_interaction_protocol(inputs)

    expected = [judge(game, common, episode) for episode in episodes]
    assert shared_done.tolist() == [e[0] for e in expected]
    assert terminated.tolist() == [e[1] for e in expected]
    assert reward.tolist() == [e[2] for e in expected]
    assert reward.dtype == torch.float32
    before = torch.as_tensor(inputs["agents", "done"])
    assert torch.equal(agent_done, before | shared_done[:, None])


amounts = st.floats(-10, 10, width=32)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_games_are_paid_as_by_the_slow_judge(make_handler, data) -> None:
    game = data.draw(st.sampled_from(sorted(GAMES)))
    common = {
        **{name: data.draw(amounts) for name in NUMBERS},
        "verifier_first": data.draw(st.booleans()),
        "shared_reward": data.draw(st.booleans()),
        "force_guess": data.draw(st.sampled_from([None, "zero", "one", "y"])),
    }
    handler = make_handler(
        game.split()[0], **GAMES[game], **{f"protocol_common__{k}": v for k, v in common.items()}
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    episodes = [
        {"seed": s, "y": int(rng.integers(2)), "done": False, "terminated": False}
        for s in range(16)
    ]
    # Played past the end, so that ended episodes are seen to stay ended and unpaid.
    for round in range(handler.max_message_rounds + 1):
        for episode in episodes:
            episode.update(round=round, decision=int(rng.choice(3, p=[0.2, 0.2, 0.6])))
        inputs = step_inputs(episodes, handler.num_agents)
        done, _, terminated, reward = handler.step_interaction_protocol(inputs)
        expected = [judge(game, common, episode) for episode in episodes]
        assert done.tolist() == [e[0] for e in expected]
        assert terminated.tolist() == [e[1] for e in expected]
        np.testing.assert_allclose(reward, [e[2] for e in expected], rtol=1e-6)
        for episode, (now_done, now_terminated, _) in zip(episodes, expected, strict=True):
            episode.update(done=now_done, terminated=now_terminated)
    assert bool((done ^ terminated).all())


def test_a_step_takes_any_batch_shape(make_handler) -> None:
    handler = make_handler("nip")
    episodes = [
        {"round": r, "seed": 0, "y": 1, "decision": d, "done": False, "terminated": False}
        for r in range(4)
        for d in range(3)
    ]
    flat = step_inputs(episodes, 2)
    shaped = {k: v.reshape(2, 6, *v.shape[1:]) for k, v in flat.items()}
    for one, other in zip(
        handler.step_interaction_protocol(flat),
        handler.step_interaction_protocol(shaped),
        strict=True,
    ):
        assert torch.equal(one, other.flatten(0, 1))


def test_mid_points_are_half_the_prover_reward_and_half_way_for_the_verifier(make_handler) -> None:
    handler = make_handler("nip", **{f"protocol_common__{k}": v for k, v in NUMBERS.items()})
    assert handler.reward_mid_point_estimate("prover") == 1.5
    assert handler.reward_mid_point_estimate("verifier") == -1.0
