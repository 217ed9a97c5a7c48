"""A person plays against trained agents; the record stays out of training."""

from __future__ import annotations

import json

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
@pytest.mark.parametrize("parameters", [GAME, NETWORKS], ids=["language models", "networks"])
def test_finished_matches_are_recorded_and_change_no_stage(lab, parameters):
    pytest.importorskip("pyspiel", reason="needs OpenSpiel")
    run = lab.run(parameters)
    command = ["play", run["run_id"], "--runs-dir", str(lab.folder / "runs"), "--seat", "player_0"]
    two = CliRunner().invoke(app, [*command, "--matches", "2"], input="Fold\n" + "Bet\n" * 4)
    assert two.exit_code == 0, two.output
    assert "Got 'Fold', expected one of: Pass, Bet." in two.output
    ended = CliRunner().invoke(app, command, input="")
    assert "The match ends without a record." in ended.output
    file = lab.folder / "runs" / run["run_id"] / RECORD_FILE
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(each["person"], each["match"]) for each in records] == [
        ("player_0", 0),
        ("player_0", 1),
    ]
    assert all(set(each["rewards"]) == {"player_0", "player_1"} for each in records)
    again = lab.run(action="resume", run=run["run_id"])
    assert (again["computed"], again["states"]) == (0, run["states"])
    other = CliRunner().invoke(app, [*command[:-1], "player_7"])
    assert other.exit_code == 2
    assert "expected one of ['player_0', 'player_1']" in other.output
