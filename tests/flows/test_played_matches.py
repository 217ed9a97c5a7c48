"""A person plays against trained agents; the record stays out of training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from flows.runs.played_matches import RECORD_FILE, Person
from ratchet.games.match import View
from ratchet.language_models.types import ChatMessage
from tests.flows.test_language_flow import GAME

NETWORKS = {
    "scenario": "gymnasium",
    "trainer": "vanilla_ppo",
    "dataset": "open_spiel/kuhn_poker",
    "agents": {"_default": {"hidden_sizes": [8]}},
    "gymnasium": {"num_envs": 8, "num_test_episodes": 8},
    "rl": {"num_iterations": 1, "frames_per_batch": 32, "minibatch_size": 32, "num_epochs": 1},
}
CUSTOM = {
    **NETWORKS,
    "dataset": f"{Path(__file__).parents[2]}/examples/language/custom_game.py:HighCard",
}
SEATS = ("player_0", "player_1")


def test_replies_that_name_no_action_are_explained():
    written: list[str] = []
    replies = iter(["Raise", "", "b"])
    person = Person("player_0", written.append, lambda prompt: next(replies))
    view = View((ChatMessage("user", "Your card: 2"),), {0: "Pass", 1: "Bet"})
    assert person.choose(view) == 1
    assert written == [
        "Your card: 2",
        "Got 'Raise', expected one of: Pass, Bet.",
        "Got '', expected one of: Pass, Bet.",
    ]
    assert person.said == ["Bet"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "seats", "legal"),
    [
        pytest.param(GAME, SEATS, ("Pass", "Bet"), id="language models"),
        pytest.param(NETWORKS, SEATS, ("Pass", "Bet"), id="networks"),
        pytest.param(CUSTOM, ("left", "right"), ("Keep", "Draw"), id="networks, custom game"),
    ],
)
def test_finished_matches_are_recorded_and_change_no_stage(lab, parameters, seats, legal):
    pytest.importorskip("pyspiel", reason="needs OpenSpiel")
    run = lab.run(parameters)
    command = ["play", run["run_id"], "--runs-dir", str(lab.folder / "runs"), "--seat", seats[0]]
    replies = "Fold\n" + f"{legal[1]}\n" * 4
    two = CliRunner().invoke(app, [*command, "--matches", "2"], input=replies)
    assert two.exit_code == 0, two.output
    assert f"Got 'Fold', expected one of: {', '.join(legal)}." in two.output
    ended = CliRunner().invoke(app, command, input="")
    assert "The match ends without a record." in ended.output
    file = lab.folder / "runs" / run["run_id"] / RECORD_FILE
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(each["person"], each["match"]) for each in records] == [
        (seats[0], 0),
        (seats[0], 1),
    ]
    assert all(each["rewards"].keys() == {*seats} for each in records)
    again = lab.run(action="resume", run=run["run_id"])
    assert (again["computed"], again["states"]) == (0, run["states"])
    other = CliRunner().invoke(app, [*command[:-1], "player_7"])
    assert other.exit_code == 2
    assert f"expected one of {list(seats)}" in other.output
