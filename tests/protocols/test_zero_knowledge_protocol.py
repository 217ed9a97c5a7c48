"""Zero knowledge: the copies, who is done when, and rewards as a loop over episodes gives them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict

GAMES: dict[str, dict[str, Any]] = {
    "nip": {"nip_protocol__max_message_rounds": 4, "nip_protocol__min_message_rounds": 2},
    "debate": {"debate_protocol__max_message_rounds": 3},
    "mnip": {
        "mnip_protocol__max_message_rounds": 3,
        "protocol_common__verifier_first": False,
        "protocol_common__shared_reward": True,
    },
    "merlin_arthur": {},
    "solo_verifier": {},
    "multi_channel_test": {"multi_channel_test_protocol__max_message_rounds": 3},
}
AMOUNTS = {
    "protocol_common__prover_reward": 3.0,
    "protocol_common__verifier_reward": 5.0,
    "protocol_common__verifier_incorrect_penalty": -7.0,
    "protocol_common__verifier_terminated_penalty": -11.0,
    "protocol_common__verifier_no_guess_reward": 0.25,
    "zk_protocol__simulator_reward_coefficient": 0.5,
    "zk_protocol__aux_prover_reward_coefficient": -0.3,
}
MESSAGE_SIZE, NUM_SYMBOLS = 2, 3


def pair(make_handler, game: str):
    changes = {**AMOUNTS, **GAMES[game]}
    base = make_handler(game, **changes)
    return base, make_handler(game, protocol_common__zero_knowledge=True, **changes)


def test_names_and_copies_of_nip(make_handler) -> None:
    handler = make_handler("nip", protocol_common__zero_knowledge=True)
    assert handler.agent_names == ("prover", "verifier", "adversarial_verifier", "simulator")
    assert handler.prover_names == ("prover",)
    assert handler.verifier_names == ("verifier", "adversarial_verifier")
    assert handler.message_channel_names == ("main_standard", "main_adversarial", "main_simulator")
    assert handler.agent_channel_visibility == {
        ("prover", "main_standard"),
        ("prover", "main_adversarial"),
        ("verifier", "main_standard"),
        ("adversarial_verifier", "main_adversarial"),
        ("simulator", "main_simulator"),
    }
    assert handler.stackelberg_sequence == (
        ("verifier", "adversarial_verifier"),
        ("prover", "simulator"),
    )
    assert (handler.max_message_rounds, handler.min_message_rounds) == (8, 1)
    assert handler.max_verifier_questions == 4
    assert handler.agent_first_active_round == {
        "prover": 1,
        "verifier": 0,
        "adversarial_verifier": 0,
        "simulator": 0,
    }
    mask = handler.get_active_agents_mask_from_rounds_and_seed(torch.tensor([0, 1]), 0).int()
    assert mask.tolist() == [
        [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]],
        [[1, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]],
    ]
    decides = handler.get_can_decide_mask_from_rounds_and_seed(torch.tensor([0, 1]), 0).int()
    assert decides.tolist() == [[0, 1, 1, 1], [0, 0, 0, 0]]
    assert [handler.reward_mid_point_estimate(a) for a in handler.agent_names] == [0.5, 0, 0, 0]


def test_channels_keep_the_order_of_the_base_in_each_copy(make_handler) -> None:
    handler = make_handler("mnip", protocol_common__zero_knowledge=True)
    assert handler.message_channel_names == (
        "prover0_channel_standard",
        "prover1_channel_standard",
        "prover0_channel_adversarial",
        "prover1_channel_adversarial",
        "prover0_channel_simulator",
        "prover1_channel_simulator",
    )
    assert ("prover0", "prover1_channel_standard") not in handler.agent_channel_visibility
    assert ("prover0", "prover0_channel_adversarial") in handler.agent_channel_visibility
    assert ("simulator", "prover1_channel_simulator") in handler.agent_channel_visibility


@pytest.mark.parametrize("game", GAMES)
def test_order_of_play_is_the_bases_in_every_copy(game, make_handler) -> None:
    base, handler = pair(make_handler, game)
    width = base.num_channels
    for round, seed in itertools.product(range(base.max_message_rounds), (0, 1)):
        plays = base.get_active_agents_mask_from_rounds_and_seed(round, seed)
        mask = handler.get_active_agents_mask_from_rounds_and_seed(round, seed)
        silent = torch.zeros(width, dtype=torch.bool)
        verifier = plays[base.agent_index("verifier")]
        for agent in handler.agent_names:
            copies = {
                "verifier": (verifier, silent, silent),
                "adversarial_verifier": (silent, verifier, silent),
                "simulator": (silent, silent, verifier),
            }
            if agent in base.prover_names:
                own = plays[base.agent_index(agent)]
                copies[agent] = (own, own, silent)
            assert torch.equal(mask[handler.agent_index(agent)], torch.cat(copies[agent]))


def cosine(first: list[float], second: list[float]) -> float:
    """Cosine of two lists; masked entries are 0; 0 with a zero vector."""
    a = [x if math.isfinite(x) else 0.0 for x in first]
    b = [x if math.isfinite(x) else 0.0 for x in second]
    length = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / length if length else 0.0


def laid_end_to_end(handler, base, episode, agent: str, copy: str) -> list[float]:
    mask = handler.get_active_agents_mask_from_rounds_and_seed(episode["round"], episode["seed"])
    index = handler.agent_index(agent)
    values: list[float] = []
    for channel in base.message_channel_names:
        c = handler.channel_index(f"{channel}_{copy}")
        logits = episode["agents", "message_logits"][index, c].flatten()
        values += logits.tolist() if mask[index, c] else [0.0] * len(logits)
    return values


def judge(handler, base, episode) -> dict[str, Any]:
    """One step of one episode, computed literally from the rules."""
    names = list(handler.agent_names)
    done = dict(zip(names, episode["agents", "done"].tolist(), strict=True))
    ended = bool(episode["done"] or episode["terminated"])
    round, y = int(episode["round"]), int(episode["y"])
    decisions = dict(zip(names, episode["agents", "decision"].tolist(), strict=True))
    guess = bool(base.get_verifier_guess_mask_from_rounds_and_seed(round, int(episode["seed"])))
    common = handler.common

    if ended:
        return {
            "done": bool(episode["done"]),
            "terminated": bool(episode["terminated"]),
            "agent_done": [done[n] or bool(episode["done"]) for n in names],
            "reward": [0.0] * len(names),
        }

    last = round >= base.max_message_rounds - 1
    reward = dict.fromkeys(names, 0.0)
    both_were_playing = not done["verifier"] and not done["adversarial_verifier"]

    def decides(name: str) -> bool:
        counts = guess and round >= base.min_message_rounds - 1
        return counts and decisions[name] != 2 and not done[name]

    if not done["verifier"]:
        d = decisions["verifier"]
        if decides("verifier"):
            right = d == y
            paid = common.verifier_reward if right else common.verifier_incorrect_penalty
        elif last:
            paid = common.verifier_terminated_penalty
        else:
            paid = common.verifier_no_guess_reward if guess else 0.0
        reward["verifier"] = paid
        for prover, wanted in base.prover_paid_decisions.items():
            if common.shared_reward:
                reward[prover] = paid
            elif decides("verifier") and d == wanted:
                reward[prover] = common.prover_reward

    if both_were_playing:
        likeness = cosine(
            laid_end_to_end(handler, base, episode, "adversarial_verifier", "adversarial"),
            laid_end_to_end(handler, base, episode, "simulator", "simulator"),
        )
        if guess:
            logits = episode["agents", "decision_logits"]
            likeness += cosine(
                logits[names.index("adversarial_verifier")].tolist(),
                logits[names.index("simulator")].tolist(),
            )
        s = handler.hyper_params.zk_protocol.simulator_reward_coefficient * likeness
        reward["simulator"] += s
        reward["adversarial_verifier"] -= s
        for prover in base.prover_names:
            reward[prover] += handler.hyper_params.zk_protocol.aux_prover_reward_coefficient * s

    newly = {n: decides(n) for n in ("verifier", "adversarial_verifier")}
    for name, now in newly.items():
        done[name] = done[name] or now
    over = done["verifier"] and done["adversarial_verifier"]
    return {
        "done": over,
        "terminated": last and not over,
        "agent_done": [done[n] or over for n in names],
        "reward": [reward[n] for n in names],
    }


def random_logits(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Some entries masked, and now and then everything 0 or everything masked."""
    logits = torch.randn(shape, generator=generator)
    logits[torch.rand(shape, generator=generator) < 0.2] = -torch.inf
    kind = torch.rand(shape[:2], generator=generator)
    logits[kind < 0.1] = 0.0
    logits[(kind > 0.1) & (kind < 0.2)] = -torch.inf
    return logits


def random_states(handler, count: int) -> TensorDict:
    """States that play can reach: one verifier done, both, none, ended or not."""
    generator = torch.Generator().manual_seed(count)
    agents, channels = handler.num_agents, handler.num_channels

    def integers(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, (count, *shape), generator=generator)

    ended = integers(6)
    done, terminated = ended == 0, ended == 1
    agent_done = done.unsqueeze(-1).repeat(1, agents)
    who = integers(3)
    v, a = handler.agent_index("verifier"), handler.agent_index("adversarial_verifier")
    agent_done[:, v] |= who == 1
    agent_done[:, a] |= who == 2
    return TensorDict(
        {
            "round": integers(handler.max_message_rounds),
            "seed": integers(100),
            "y": integers(2),
            "done": done,
            "terminated": terminated,
            "agents": {
                "done": agent_done,
                "decision": integers(3, agents),
                "message_logits": random_logits(
                    (count, agents, channels, MESSAGE_SIZE, NUM_SYMBOLS), generator
                ),
                "decision_logits": random_logits((count, agents, 3), generator),
            },
        },
        batch_size=[count],
    )


@pytest.mark.parametrize("game", GAMES)
def test_steps_are_judged_as_by_a_loop_over_episodes(game, make_handler) -> None:
    base, handler = pair(make_handler, game)
    states = random_states(handler, 250)
    before = states.clone()
    shared_done, agent_done, terminated, reward = handler.step_interaction_protocol(states)
    assert (states == before).all(), "a step must not change its input"
    expected = [judge(handler, base, episode) for episode in states]
    assert shared_done.tolist() == [e["done"] for e in expected]
    assert terminated.tolist() == [e["terminated"] for e in expected]
    assert agent_done.tolist() == [e["agent_done"] for e in expected]
    torch.testing.assert_close(reward, torch.tensor([e["reward"] for e in expected]))
    assert reward.isfinite().all()
    assert reward[:, handler.agent_index("simulator")].count_nonzero() > 5


def nip_state(handler, decisions: list[int], **changes: Any) -> TensorDict:
    """Round 0 of nip, the verifier first; adversary and simulator alike."""
    shape = (1, 4, 3, 1, 2)
    state = TensorDict(
        {
            "round": torch.tensor([0]),
            "seed": torch.tensor([0]),
            "y": torch.tensor([1]),
            "done": torch.tensor([False]),
            "terminated": torch.tensor([False]),
            "agents": {
                "done": torch.zeros(1, 4, dtype=torch.bool),
                "decision": torch.tensor([decisions]),
                "message_logits": torch.ones(shape),
                "decision_logits": torch.ones(1, 4, 3),
            },
        },
        batch_size=[1],
    )
    return state.update(TensorDict(changes, batch_size=[1]))


def test_a_game_from_first_decision_to_the_end(make_handler) -> None:
    handler = make_handler("nip", protocol_common__zero_knowledge=True)
    state = nip_state(handler, [2, 1, 2, 0])
    step = handler.step_interaction_protocol(state)
    # The verifier is correct (1), the prover is rewarded (1), and both cosines are 1: S = 2.
    torch.testing.assert_close(step.reward, torch.tensor([[3.0, 1.0, -2.0, 2.0]]))
    assert step.agent_done.tolist() == [[False, True, False, False]]
    assert not step.shared_done.any()

    state = nip_state(handler, [2, 0, 0, 2], round=torch.tensor([2]))
    state["agents", "done"] = step.agent_done
    step = handler.step_interaction_protocol(state)
    # Only the adversary still plays: there are no rewards, and its decision ends the episode.
    assert step.reward.tolist() == [[0.0, 0.0, 0.0, 0.0]]
    assert step.agent_done.all()
    assert step.shared_done.all()
    assert not step.terminated.any()


def test_the_verifier_may_be_right_and_the_episode_cut_off_for_the_adversary(make_handler) -> None:
    handler = make_handler(
        "nip", protocol_common__zero_knowledge=True, nip_protocol__max_message_rounds=1
    )
    step = handler.step_interaction_protocol(nip_state(handler, [2, 1, 2, 2]))
    assert step.terminated.tolist() == [True]
    assert step.shared_done.tolist() == [False]
    assert step.reward[0, 1].item() == 1.0


def test_a_zero_vector_is_like_nothing(make_handler) -> None:
    handler = make_handler("nip", protocol_common__zero_knowledge=True)
    state = nip_state(handler, [2, 2, 2, 2])
    state["agents", "message_logits"][:, 3] = 0.0
    state["agents", "decision_logits"][:, 2] = -torch.inf
    assert handler.simulator_reward(state).tolist() == [0.0]
    state["agents", "decision_logits"][:, 2] = -1.0
    torch.testing.assert_close(handler.simulator_reward(state), torch.tensor([-1.0]))
