"""Rollouts of every protocol, compared with a slow reference implementation of the rules."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from typing import Any, NamedTuple

import pytest

from ratchet.protocols.base import SingleVerifierProtocolHandler
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.outcomes import final_decisions
from ratchet.rollouts.specs import rollout_spec
from ratchet.scenarios.pure_text.rollout import sample_rollout

SEEDS = range(8)
TEXT_PROTOCOLS = ["nip", "adp", "debate", "merlin_arthur", "mnip", "solo_verifier"]
MOST_COMBINATIONS = 24
PAY = {
    "protocol_common__prover_reward": 3.0,
    "protocol_common__verifier_reward": 2.0,
    "protocol_common__verifier_incorrect_penalty": -5.0,
    "protocol_common__verifier_terminated_penalty": -7.0,
    "protocol_common__verifier_no_guess_reward": 0.25,
}


class Rules(NamedTuple):
    """A protocol as its description has it, in the words of this file."""

    agents: tuple[str, ...]
    channels: tuple[str, ...]
    max_rounds: int
    min_rounds: int
    writes: Any  # (round, seed) -> {agent: channels}
    wants: dict[str, int]  # prover -> the decision for which it is rewarded


def rules_of(protocol: str, p: dict[str, Any]) -> Rules:
    verifier_first = p.get("protocol_common__verifier_first", True)
    section = f"{protocol}_protocol__"
    most = p.get(f"{section}max_message_rounds", 8)
    least = p.get(f"{section}min_message_rounds", 1)
    if protocol == "nip":

        def nip(round: int, seed: int) -> dict[str, tuple[str, ...]]:
            even = round % 2 == 0
            return {"verifier" if even == verifier_first else "prover": ("main",)}

        return Rules(("prover", "verifier"), ("main",), most, least, nip, {"prover": 1})
    if protocol == "adp":
        turns = [{"prover": ("main",)}, {"verifier": ("main",)}]
        return Rules(("prover", "verifier"), ("main",), 2, 1, lambda r, s: turns[r], {"prover": 1})
    if protocol == "solo_verifier":
        return Rules(("verifier",), ("main",), 1, 1, lambda r, s: {"verifier": ("main",)}, {})
    if protocol == "merlin_arthur":
        return Rules(
            ("prover0", "prover1", "verifier"),
            ("main",),
            2,
            1,
            lambda r, s: {"verifier" if r else f"prover{s % 2}": ("main",)},
            {"prover0": 0, "prover1": 1},
        )
    both = ("prover0_channel", "prover1_channel")
    if p.get(f"{section}sequential", False):
        order = (0, 1) if p.get(f"{section}prover0_first", True) else (1, 0)
        provers = [{f"prover{i}": (both[i],)} for i in order]
    else:
        provers = [{"prover0": both[:1], "prover1": both[1:]}]
    verifier = [{"verifier": both}]
    period = verifier + provers if verifier_first else provers + verifier
    wants = {"prover0": 0 if protocol == "debate" else 1, "prover1": 1}
    return Rules(
        ("prover0", "prover1", "verifier"),
        both,
        most,
        least,
        lambda r, s: period[r % len(period)],
        wants,
    )


def forced_by(p: dict[str, Any], said: int, y: int) -> int:
    return {None: said, "zero": 0, "one": 1, "y": y}[p.get("protocol_common__force_guess")]


def judge(rules: Rules, p: dict[str, Any], game: dict[str, Any], round: int, said: int) -> Any:
    """Return whether it is over, whether truncated, and the rewards."""
    y, stance = game["y"], game["stance"]
    forced = forced_by(p, said, y)
    guesses = "verifier" in rules.writes(round, game["seed"])
    decided = guesses and forced != 2 and round + 1 >= rules.min_rounds
    terminated = not decided and round + 1 >= rules.max_rounds
    if decided:
        verifier = 2.0 if forced == y else -5.0
    elif terminated:
        verifier = -7.0
    else:
        verifier = 0.25 if guesses else 0.0
    rewards = {"verifier": verifier}
    for prover, wanted in rules.wants.items():
        if p.get("protocol_common__shared_reward"):
            rewards[prover] = verifier
            continue
        if p.get("protocol_common__randomize_prover_stance"):
            wanted = stance
        rewards[prover] = 3.0 if decided and forced == wanted else 0.0
    return decided, terminated, [rewards[name] for name in rules.agents]


def check_rollout(
    rollout: NestedArrayDict, rules: Rules, p: dict[str, Any], decide: Any, write: Any
) -> int:
    """Play the game with the reference, compare all values, and return the number of rounds."""
    r = {key: leaf.tolist()[0] for key, leaf in rollout.items(True, True)}
    seed = r["seed"]
    game = {"seed": seed, "y": r["y"], "stance": r["prover_stance"]}
    over, ended = False, -1
    for t in range(rules.max_rounds):
        if over:
            check_padding(r, t, terminated=r["terminated"][ended])
            continue
        speakers = rules.writes(t, seed)
        allowed = t + 1 >= rules.min_rounds
        said = decide(seed, "verifier", t) if "verifier" in speakers else 2
        decided, terminated, rewards = judge(rules, p, game, t, said)
        over, ended = decided or terminated, t
        assert r["agents", "reward"][t] == rewards
        assert (r["done"][t], r["terminated"][t]) == (over, terminated)
        assert not r["padding"][t]
        assert r["round"][t] == t
        for a, agent in enumerate(rules.agents):
            active = agent in speakers
            assert r["agents", "active"][t][a] == active
            counts = agent == "verifier" and active and allowed
            assert r["agents", "decision"][t][a] == (forced_by(p, said, r["y"]) if counts else 2)
            raw = f"raw {agent} {t}" if active else None
            assert r["agents", "raw_message"][t][a] == raw == r["raw_message_history"][t][a]
            assert (r["agents", "prompt"][t][a] is not None) == active
            for name, value in (("retry_count", t), ("prompt_tokens", 10 + t)):
                assert r["agents", name][t][a] == (value if active else 0)
            assert r["agents", "valid"][t][a] == active
        for c, channel in enumerate(rules.channels):
            check_channel(r, rules, speakers, (t, c, channel), write)
    return ended + 1


def check_channel(r: Any, rules: Rules, speakers: Any, place: Any, write: Any) -> None:
    t, c, channel = place
    writer = next((a for a in rules.agents if channel in speakers.get(a, ())), None)
    text = None if writer is None else write(r["seed"], writer, t, channel)
    assert r["message_history"][t][c] == text
    nobody = -1 if text is None else rules.agents.index(writer)
    assert r["message_agent_id"][t][c] == nobody
    for a, agent in enumerate(rules.agents):
        assert r["agents", "message"][t][a][c] == (text if agent == writer else None)


def check_padding(r: Any, t: int, *, terminated: bool) -> None:
    assert r["padding"][t]
    assert r["done"][t]
    assert r["terminated"][t] == terminated
    assert not any(r["agents", "active"][t])
    assert set(r["agents", "decision"][t]) == {2}
    assert set(r["agents", "reward"][t]) == {0.0}
    assert set(r["message_agent_id"][t]) == {-1}
    for key in ("raw_message", "prompt"):
        assert set(r["agents", key][t]) == {None}
    assert {text for texts in r["agents", "message"][t] for text in texts} == {None}
    assert r["node_id"][t] == -1


def combinations(protocol: str) -> list[dict[str, Any]]:
    """Values of the common parameters and of the protocol's own; if they are many, a sample."""
    section = f"{protocol}_protocol__"
    options: dict[str, tuple[Any, ...]] = {
        "protocol_common__verifier_first": (True, False),
        "protocol_common__shared_reward": (False, True),
        "protocol_common__force_guess": (None, "zero", "one", "y"),
    }
    if protocol in ("nip", "adp"):
        options["protocol_common__randomize_prover_stance"] = (False, True)
    if protocol in ("nip", "debate", "mnip"):
        options[f"{section}max_message_rounds"] = (5, 6)
        options[f"{section}min_message_rounds"] = (1, 4)
    if protocol in ("debate", "mnip"):
        options[f"{section}sequential"] = (False, True)
        options[f"{section}prover0_first"] = (True, False)
    made = [
        dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())
    ]
    # prover0_first has no effect if they act simultaneously.
    made = [
        p for p in made if p.get(f"{section}sequential") or p.get(f"{section}prover0_first", True)
    ]
    return random.Random(0).sample(made, min(MOST_COMBINATIONS, len(made)))


@pytest.mark.parametrize("protocol", TEXT_PROTOCOLS)
def test_a_rollout_is_what_the_rules_say(
    protocol, make_text_game, make_context, decision_script, text_script
):
    lengths, cut_off, stances = set(), set(), set()
    for p in combinations(protocol):
        game = make_text_game(protocol, **PAY, **p)
        rules = rules_of(protocol, p)
        handler = game.handler
        spec = rollout_spec(handler.max_message_rounds, handler.num_agents, handler.num_channels)
        for seed in SEEDS:
            rollout = asyncio.run(
                sample_rollout(game.environment, game.agents, seed % 4, seed, 7, make_context())
            )
            spec.check(rollout)
            assert rollout["rollout_id"].tolist() == [7]
            assert rollout["datapoint_id"].tolist() == [seed % 4]
            assert rollout["y"].tolist() == [seed % 2]
            assert rollout["solution"].tolist() == [f"solution {seed % 4}"]
            lengths.add(check_rollout(rollout, rules, p, decision_script, text_script))
            cut_off.add(bool(rollout["terminated"][0, -1]))
            stances.add(int(rollout["prover_stance"][0]))
    assert cut_off == {True, False}  # both ends were met
    if protocol in ("nip", "debate", "mnip"):
        assert len(lengths) >= 3
    assert stances == ({0, 1} if protocol in ("nip", "adp") else {1})


def test_prompts_are_kept_as_they_were_sent(make_text_game, make_context):
    game = make_text_game("nip", eagerness=0.0)
    rollout = asyncio.run(sample_rollout(game.environment, game.agents, 0, 7, 0, make_context()))
    first = json.loads(rollout["agents", "prompt"][0, 0, 1])
    assert first == [{"role": "system", "content": "system"}]
    third = json.loads(rollout["agents", "prompt"][0, 2, 1])
    assert [message["role"] for message in third] == ["system", "assistant", "user"]
    assert third[2]["name"] == "Expert"


def test_calls_of_a_rollout_are_named_by_its_place_in_the_plan(make_text_game, make_context):
    game = make_text_game("adp")
    seen = []

    class Spy:
        async def act(self, view, context):
            seen.append(context.call_prefix)
            return await game.agents[view.agent_name].act(view, context)

    agents = dict.fromkeys(game.agents, Spy())
    asyncio.run(sample_rollout(game.environment, agents, 0, 3, 12, make_context("")))
    assert set(seen) == {"r12"}


def test_those_who_act_in_one_round_act_at_once_and_all_end_before_an_error_travels(
    make_text_game, make_context
):
    game = make_text_game("mnip", protocol_common__verifier_first=False)
    ended = []

    class Failing:
        async def act(self, view, context):
            raise RuntimeError("no answer")

    class Slow:
        async def act(self, view, context):
            await asyncio.sleep(0.01)
            ended.append(view.agent_name)
            return game.agents[view.agent_name].action(view)

    agents = {**game.agents, "prover0": Failing(), "prover1": Slow()}
    with pytest.raises(RuntimeError, match="no answer"):
        asyncio.run(sample_rollout(game.environment, agents, 0, 3, 0, make_context()))
    assert ended == ["prover1"]


def test_a_stance_depends_on_the_seed_alone_and_is_about_as_often_either(make_text_game):
    game = make_text_game("nip", protocol_common__randomize_prover_stance=True)
    stances = [game.environment.prover_stance(seed) for seed in range(1000)]
    assert 430 < sum(stances) < 570
    other = make_text_game("adp", protocol_common__randomize_prover_stance=True, seed=1)
    assert [other.environment.prover_stance(seed) for seed in range(1000)] == stances


@pytest.mark.parametrize(("protocol", "most_asked"), [("nip", 2), ("merlin_arthur", 4)])
def test_the_protocol_is_asked_for_tables_and_not_at_every_step(
    protocol, most_asked, make_text_game, make_context, monkeypatch
):
    game = make_text_game(protocol)
    asked = []
    usual = type(game.handler).step_interaction_protocol

    def counted(self, env_td):
        asked.append(env_td["y"].shape)
        return usual(self, env_td)

    monkeypatch.setattr(SingleVerifierProtocolHandler, "step_interaction_protocol", counted)
    for seed in range(50):
        asyncio.run(
            sample_rollout(game.environment, game.agents, seed % 4, seed, 0, make_context())
        )
    assert 0 < len(asked) <= most_asked


@pytest.mark.parametrize("force_guess", ["zero", "one", "y"])
@pytest.mark.parametrize("protocol", TEXT_PROTOCOLS)
def test_a_forced_decision_is_kept_where_the_verifier_never_decides(
    protocol, force_guess, make_text_game, make_context
):
    game = make_text_game(protocol, eagerness=0.0, protocol_common__force_guess=force_guess)
    verifier = game.handler.agent_index("verifier")
    for seed in range(4):
        play = sample_rollout(game.environment, game.agents, seed, seed, 0, make_context())
        rollout = asyncio.run(play)
        wanted = {"zero": 0, "one": 1, "y": seed % 2}[force_guess]
        assert final_decisions(rollout, verifier).tolist() == [wanted]
        assert not rollout["terminated"].any()
