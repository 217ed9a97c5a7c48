"""Views of agents, hidden information, and the order of prompts."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.errors import ProtocolSpecificationError
from ratchet.parameters import ExperimentSettings
from ratchet.protocols.multi_channel_test import MultiChannelTestProtocolHandler
from ratchet.protocols.text_specs import TextAgentSpec
from ratchet.scenarios.pure_text.agents.whole_agent import PureTextWholeAgent
from ratchet.scenarios.pure_text.episode import Position, SentMessage
from ratchet.scenarios.pure_text.playing import advance_episode, begin_episode
from ratchet.scenarios.pure_text.views import (
    agent_view,
    build_prompt,
    channel_order,
    supervisor_message,
    view_of,
)


class ThreeProversInText(MultiChannelTestProtocolHandler):
    """Everything that has to do with channels: some are hidden from some agents."""

    randomize_channel_order = True

    def text_agent_spec(self, agent_name):
        headers = {c: f"{c}:" for a, c in self.agent_channel_visibility if a == agent_name}
        return TextAgentSpec(agent_name, headers, anonymous=agent_name == "prover2")


class Told:
    """The same system prompt for every agent."""

    def render(self, view):
        return "system"


GAMES = ("nip", "debate", "mnip", "merlin_arthur", ThreeProversInText)


def play(game, seed, num_rounds=99, *, said=None):
    """Play up to some rounds; ``said`` may replace the messages of a channel."""
    episode = begin_episode(game.environment, seed % 4, seed)
    while not episode.done and episode.position.round < num_rounds:
        position = episode.position
        actions = {}
        for name, agent in game.agents.items():
            action = agent.action(view_of(game.environment.rules, position, name))
            if said is not None:
                action = said(name, position.round, action)
            actions[name] = action
        episode = advance_episode(game.environment, episode, actions)
    return episode


def prompts(game, position):
    inner = game.environment.rules
    return {
        name: build_prompt(view_of(inner, position, name), inner.specs[name], "system")
        for name in inner.agent_names
    }


@pytest.mark.parametrize("protocol", GAMES)
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(1, 8), st.data())
def test_a_change_where_an_agent_sees_nothing_changes_nothing_for_it(
    protocol, make_text_game, seed, rounds, data
):
    game = make_text_game(protocol, eagerness=0.0)
    channels = game.handler.message_channel_names
    changed_channel = data.draw(st.sampled_from(channels))
    changed_round = data.draw(st.integers(0, 7))

    def other(name, round, action):
        if round != changed_round or changed_channel not in action.messages:
            return action
        messages = {**action.messages, changed_channel: "something else"}
        return dataclasses.replace(action, messages=messages)

    before = play(game, seed, rounds).position
    after = play(game, seed, rounds, said=other).position
    for name in game.handler.agent_names:
        sees = (name, changed_channel) in game.handler.agent_channel_visibility
        if not sees:
            assert prompts(game, before)[name] == prompts(game, after)[name]
            assert view_of(game.environment.rules, before, name) == view_of(
                game.environment.rules, after, name
            )
    written = {(m.round, m.channel) for m in before.messages}
    if (changed_round, changed_channel) in written:
        assert before != after


def test_hidden_channels_are_met_by_the_test_above(make_text_game):
    game = make_text_game(ThreeProversInText, eagerness=0.0)
    position = play(game, 5).position
    seen = view_of(game.environment.rules, position, "prover0").messages
    assert {m.channel for m in seen} == {"main", "prover0_verifier", "prover_chat"}
    assert {m.channel for m in view_of(game.environment.rules, position, "prover1").messages} == {
        "main",
        "prover_chat",
    }


@pytest.mark.parametrize("protocol", GAMES)
@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_no_agent_sees_the_label_nor_what_others_wrote_for_themselves(
    protocol, make_text_game, seed
):
    game = make_text_game(protocol, eagerness=0.0)
    first = play(game, seed, 5).position

    def secretive(name, round, action):
        return dataclasses.replace(action, raw_message=f"secret of {name}")

    second = play(game, seed, 5, said=secretive).position
    for name, prompt in prompts(game, second).items():
        for other in game.handler.agent_names:
            assert other == name or f"secret of {other}" not in str(prompt)
        users = [m for m in prompt if m.role != "assistant"]
        assert users == [m for m in prompts(game, first)[name] if m.role != "assistant"]
    assert not any(field.name == "y" for field in dataclasses.fields(first))
    label = begin_episode(game.environment, seed % 4, seed).y
    state = game.environment.reset([seed % 4], [seed])
    for name in game.handler.agent_names:
        view = agent_view(state, 0, name, game.handler)
        state["y"][:] = 1 - label
        assert agent_view(state, 0, name, game.handler) == view


def test_a_verifier_does_not_see_the_stance_and_a_prover_does(make_text_game):
    game = make_text_game("nip", protocol_common__randomize_prover_stance=True)
    position = play(game, 7, 2).position
    views = [
        {
            n: view_of(game.environment.rules, dataclasses.replace(position, prover_stance=s), n)
            for n in ("prover", "verifier")
        }
        for s in (0, 1)
    ]
    assert views[0]["verifier"] == views[1]["verifier"]
    assert [v["prover"].stance for v in views] == [0, 1]
    assert views[0]["verifier"].stance is None


@pytest.mark.parametrize(
    ("protocol", "stances"),
    [
        ("nip", {"prover": 1}),
        ("adp", {"prover": 1}),
        ("debate", {"prover0": 0, "prover1": 1}),
        ("merlin_arthur", {"prover0": 0, "prover1": 1}),
        ("mnip", {"prover0": 1, "prover1": 1}),
    ],
)
def test_provers_argue_for_what_pays_them(protocol, stances, make_text_game):
    game = make_text_game(protocol).environment.rules
    assert {name: game.stance_of(name, 1) for name in stances} == stances
    assert game.stance_of("verifier", 1) is None


def test_the_view_of_a_state_in_a_batch_is_that_of_the_episode(make_text_game):
    for protocol in GAMES:
        game = make_text_game(protocol, eagerness=0.1)
        seeds = np.arange(6)
        state = game.environment.reset(seeds % 4, seeds)
        for round in range(4):
            for row, seed in enumerate(seeds.tolist()):
                position = play(game, seed, round).position
                for name in game.handler.agent_names:
                    expected = view_of(game.environment.rules, position, name)
                    assert agent_view(state, row, name, game.handler) == expected
            state, _ = game.environment.step(state, game.outputs(state))


def test_a_prompt_has_the_promised_order(make_text_game, make_action):
    game = make_text_game("nip", nip_protocol__max_message_rounds=5)
    inner = game.environment.rules
    episode = begin_episode(game.environment, 0, 3)
    for speaker, text in (
        ("verifier", "why?"),
        ("prover", "because"),
        ("verifier", "really?"),
        ("prover", "yes"),
    ):
        action = make_action({"main": text}, raw_message=f"H: {text}")
        episode = advance_episode(game.environment, episode, {speaker: action})

    def shown(name):
        prompt = build_prompt(
            view_of(inner, episode.position, name), inner.specs[name], "you are …"
        )
        return [(m.role, m.content, m.name) for m in prompt]

    assert shown("verifier") == [
        ("system", "you are …", None),
        ("assistant", "H: why?", None),
        ("user", "because", "Expert"),
        ("assistant", "H: really?", None),
        ("user", "yes", "Expert"),
        ("system", inner.specs["verifier"].last_round_system_message, None),
    ]
    assert shown("prover") == [
        ("system", "you are …", None),
        ("user", "why?", "Verifier"),
        ("assistant", "H: because", None),
        ("user", "really?", "Verifier"),
        ("assistant", "H: yes", None),
    ]


def test_own_replies_come_before_what_others_said_in_the_same_round(make_text_game, make_action):
    game = make_text_game("debate", protocol_common__verifier_first=False)
    inner = game.environment.rules
    actions = {
        name: make_action({c: f"{name} says" for c in inner.channel_names}, f"raw {name}")
        for name in inner.agent_names
    }
    episode = advance_episode(game.environment, begin_episode(game.environment, 0, 1), actions)
    prompt = build_prompt(view_of(inner, episode.position, "prover1"), inner.specs["prover1"], "s")
    assert [(m.role, m.content, m.name) for m in prompt] == [
        ("system", "s", None),
        ("assistant", "raw prover1", None),
        ("user", "prover0 says", "Expert_1"),
    ]


@pytest.mark.parametrize(("most", "first", "last"), [(8, True, 6), (8, False, 7), (5, True, 4)])
def test_the_last_round_is_that_in_which_the_agent_acts_last(most, first, last, make_text_game):
    game = make_text_game(
        "nip",
        eagerness=0.0,
        protocol_common__verifier_first=first,
        nip_protocol__max_message_rounds=most,
    )
    inner = game.environment.rules
    turns = [inner.turn(round, 0, "verifier") for round in range(most)]
    assert [round for round, turn in enumerate(turns) if turn.is_last] == [last]
    for round in range(most):
        prompt = prompts(game, play(game, 1, round).position)["verifier"]
        is_told = prompt[-1].content == inner.specs["verifier"].last_round_system_message
        assert is_told == (round == last)


def test_decisions_may_be_made_only_where_they_count(make_text_game):
    game = make_text_game("nip", nip_protocol__min_message_rounds=4).environment.rules
    may = [game.turn(round, 0, "verifier").may_decide for round in range(8)]
    assert may == [False, False, False, False, True, False, True, False]
    assert not any(game.turn(round, 0, "prover").may_decide for round in range(8))
    three = make_text_game("nip", nip_protocol__min_message_rounds=3).environment.rules
    assert [r for r in range(8) if three.turn(r, 0, "verifier").may_decide] == [2, 4, 6]


def test_only_the_channels_to_write_in_now_have_headers(make_text_game):
    game = make_text_game(ThreeProversInText).environment.rules
    assert dict(game.turn(2, 0, "verifier").headers) == {
        "main": "main:",
        "prover0_verifier": "prover0_verifier:",
    }
    assert dict(game.turn(0, 0, "prover0").headers) == {"prover_chat": "prover_chat:"}
    assert dict(game.turn(1, 0, "prover2").headers) == {"main": "main:"}


def test_anonymous_agents_have_no_name_in_prompts(make_text_game):
    game = make_text_game("merlin_arthur", eagerness=0.0)
    position = play(game, 8, 1).position
    assert [m.name for m in prompts(game, position)["verifier"]] == [None, None]


def test_channels_are_shown_in_an_order_drawn_by_seed_plus_round(make_text_game):
    channels = ("a", "b", "c")
    orders = {channel_order(seed, 0, channels) for seed in range(200)}
    assert len(orders) == 6
    assert channel_order(5, 3, channels) == channel_order(7, 1, channels)
    firsts = sum(channel_order(seed, 0, ("a", "b"))[0] == "a" for seed in range(1000))
    assert 430 < firsts < 570

    game = make_text_game("mnip", eagerness=0.0, protocol_common__verifier_first=False)
    seen = set()
    for seed in range(30):
        position = play(game, seed, 1).position
        if len(position.messages) < 2:
            continue
        names = tuple(m.name for m in prompts(game, position)["verifier"][1:])
        first = channel_order(seed, 0, tuple(game.handler.message_channel_names))[0]
        expected = ("Expert_1", "Expert_2")
        assert names == (expected if first == "prover0_channel" else expected[::-1])
        seen.add(names)
    assert len(seen) == 2


def test_without_randomizing_channels_keep_their_order_and_provers_always_see_it(make_text_game):
    for protocol, changes in (
        ("debate", {"debate_protocol__randomize_channel_order": False}),
        ("debate", {}),
    ):
        game = make_text_game(protocol, eagerness=0.0, **changes)
        for seed in range(30):
            position = play(game, seed, 2).position
            shown = prompts(game, position)
            for name in ("prover0", "prover1") if not changes else game.handler.agent_names:
                texts = [m.content for m in shown[name][1:] if m.role == "user"]
                in_order = [m.text for m in position.messages if m.speaker != name]
                assert texts == in_order


def test_processed_messages_are_shown_where_raw_ones_are_not(make_text_game, make_action):
    game = make_text_game("debate")
    inner = game.environment.rules
    messages = {"prover0_channel": "one?", "prover1_channel": "two?"}
    action = make_action(messages, "long thoughts, one? two?")
    episode = advance_episode(
        game.environment, begin_episode(game.environment, 0, 1), {"verifier": action}
    )
    view = view_of(inner, episode.position, "verifier")
    spec = dataclasses.replace(inner.specs["verifier"], shows_own_raw_messages=False)
    assert build_prompt(view, spec, "s")[1].content == "one?\n\ntwo?"
    assert build_prompt(view, inner.specs["verifier"], "s")[1].content.startswith("long")


def test_empty_messages_are_left_out(make_text_game, make_action):
    game = make_text_game("nip")
    inner = game.environment.rules
    action = make_action({"main": ""}, "", valid=False)
    episode = advance_episode(
        game.environment, begin_episode(game.environment, 0, 1), {"verifier": action}
    )
    assert len(episode.position.messages) == 1
    for name in inner.agent_names:
        view = view_of(inner, episode.position, name)
        assert len(build_prompt(view, inner.specs[name], "s")) == 1


@pytest.mark.parametrize("name", ["", "Expert 1", "Prüfer", "a" * 65])
def test_names_that_services_refuse_are_refused(name):
    with pytest.raises(ProtocolSpecificationError, match="human_name"):
        TextAgentSpec(name)


@pytest.mark.parametrize(
    "headers", [{"a": ""}, {"a": "x\ny"}, {"a": "X:", "b": "x:"}, {"a": "Decision:"}]
)
def test_headers_that_could_be_mistaken_are_refused(headers):
    with pytest.raises(ProtocolSpecificationError, match="headers"):
        TextAgentSpec("Expert", headers)


def test_prompts_do_not_depend_on_the_hash_seed_or_other_generators():
    random.seed(1)
    first = channel_order(3, 4, ("x", "y", "z"))
    random.seed(2)
    np.random.seed(3)  # noqa: NPY002
    channel_order.__globals__["_order"].cache_clear()
    assert channel_order(3, 4, ("x", "y", "z")) == first


@pytest.mark.parametrize(
    ("use", "round", "appended"),
    [
        ("none", 0, False),
        ("if_nothing_heard", 0, True),
        ("if_nothing_heard", 2, False),
        ("first", 0, True),
        ("first", 2, False),
        ("all_but_first", 0, False),
        ("all_but_first", 2, True),
        ("always", 0, True),
        ("always", 2, True),
    ],
)
def test_a_supervisor_says_at_the_end_how_to_answer(make_text_game, use, round, appended):
    game = make_text_game("nip", agents___default__use_supervisor_message=use)
    inner, hyper_params = game.environment.rules, game.environment.hyper_params
    settings = ExperimentSettings()
    agent = PureTextWholeAgent(hyper_params, settings, "verifier", game.handler, Told())
    said = tuple(SentMessage(r, "main", ("verifier", "prover")[r % 2], "x") for r in range(round))
    position = Position(0, 1, 1, "q", "s", round, messages=said)
    view = view_of(inner, position, "verifier")
    before = build_prompt(view, inner.specs["verifier"], "system")
    prompt = agent._prompt(view)
    assert (len(prompt) > len(before)) == appended
    if appended:
        assert (prompt[-1].role, prompt[-1].name) == ("user", "Supervisor")
        assert "\nQuestion: <your text>" in prompt[-1].content
        assert "\nDecision: accept" in prompt[-1].content


def test_in_its_last_turn_a_verifier_is_told_to_decide_and_nothing_else(make_text_game):
    inner = make_text_game("nip", nip_protocol__max_message_rounds=3).environment.rules
    view = view_of(inner, Position(0, 1, 1, "q", "s", 2), "verifier")
    text = supervisor_message(view, inner.scale).content
    assert text.endswith("This is your last turn: decide now.")
    assert "Question:" not in text
