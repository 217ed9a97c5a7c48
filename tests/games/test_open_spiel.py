"""OpenSpiel's games: matches are functions of their seed and actions."""

from __future__ import annotations

import random

import pytest

from ratchet.errors import ParameterError, UnknownNameError
from ratchet.games.loading import make_game
from ratchet.games.match import read_action

pytest.importorskip("pyspiel", reason="needs OpenSpiel: pip install 'ratchet-experiments[games]'")

GAMES = {
    "kuhn_poker": {},
    "leduc_poker": {},
    "liars_dice": {},
    "negotiation": {},
    "goofspiel": {"players": 3, "num_cards": 5},
    "tic_tac_toe": {},
}


def replay(game, seed, moves):
    """Return the match after moves, and the views of all steps."""
    match, views = game.begin(seed), []
    for actions in moves:
        views.append({seat: match.view(seat) for seat in match.acting})
        match.play(actions)
    return match, views


def play_at_random(game, seed):
    rng, match, moves = random.Random(seed), game.begin(seed), []
    while match.acting:
        moves.append({seat: rng.choice(list(match.view(seat).legal)) for seat in match.acting})
        match.play(moves[-1])
    return match, moves


@pytest.mark.parametrize("name", GAMES)
def test_every_prefix_of_a_match_is_the_same_when_it_is_replayed(name):
    game = make_game(f"open_spiel/{name}", GAMES[name])
    for seed in range(20):
        match, moves = play_at_random(game, seed)
        assert set(match.rewards) == set(game.seats)
        _, views = replay(game, seed, moves)
        for length in range(len(moves) + 1):
            again, seen = replay(game, seed, moves[:length])
            assert seen == views[:length]
            if length < len(moves):
                assert {s: again.view(s) for s in again.acting} == views[length]
        assert again.rewards == match.rewards
        assert not again.acting


@pytest.mark.parametrize("name", ["kuhn_poker", "negotiation"])
def test_chance_is_drawn_from_the_seed(name):
    game = make_game(f"open_spiel/{name}", {})
    first = [str(game.begin(seed).view("player_0").messages) for seed in range(40)]
    assert first == [str(game.begin(seed).view("player_0").messages) for seed in range(40)]
    assert len(set(first)) > 2


def test_seats_act_at_the_same_time_in_simultaneous_games():
    match = make_game("open_spiel/goofspiel", {"players": 3}).begin(0)
    assert match.acting == ["player_0", "player_1", "player_2"]
    assert list(match.view("player_1").legal.values())[:2] == ["Bid: 1", "Bid: 2"]


def test_small_games_have_the_characters_of_all_views_and_actions():
    small = make_game("open_spiel/kuhn_poker", {}).characters()
    assert small == "".join(sorted({*"012pbPassBet"}))
    assert set("abcXYZ[]: 09") <= {*make_game("open_spiel/liars_dice", {}).characters()}


def test_unknown_games_and_parameters_are_named():
    with pytest.raises(UnknownNameError, match=r"kuhn_poke.*Did you mean.*kuhn_poker"):
        make_game("open_spiel/kuhn_poke", {})
    with pytest.raises(ParameterError, match=r"kuhn_poker has no parameter 'plyers'.*players"):
        make_game("open_spiel/kuhn_poker", {"plyers": 3})
    assert make_game("reverse", {}) is None


@pytest.mark.parametrize(
    ("reply", "action"),
    [("Bet", 1), (" bet\n", 1), ("B", 1), ("be", 1), ("Pass", 0), ("", None), ("x", None)],
)
def test_replies_name_actions_by_their_text_or_its_start(reply, action):
    assert read_action({0: "Pass", 1: "Bet"}, reply) == action


def test_case_distinguishes_actions_that_differ_by_it_alone():
    moves = {0: "bxa4", 1: "Bxa4", 2: "Nf3"}
    assert [read_action(moves, reply) for reply in ("bxa4", "Bxa4", "nf3", "b", "B")] == [
        0,
        1,
        2,
        0,
        1,
    ]
    assert read_action(moves, "BXA4") is None


def test_the_start_of_several_actions_names_none():
    assert read_action({0: "Raise", 1: "Raise all"}, "rai") is None
    assert read_action({0: "Raise", 1: "Raise all"}, "raise") == 0
