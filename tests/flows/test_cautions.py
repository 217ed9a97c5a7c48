"""What would run and is seldom meant is said by plans, and once by a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from flows.runs.recording import RunRecorder
from flows.runs.resolving import resolve
from ratchet.tracking.manifest import RunManifest
from ratchet.tracking.run_folder import RunFolder
from trainers.cautions import find_cautions

GIVEN = {"scenario": "graph_isomorphism", "dataset": "generated", "trainer": "vanilla_ppo"}
DEMO = Path(__file__).parents[2] / "experiments" / "demo.yaml"


def said(arms=None, **changes):
    experiment = resolve({**GIVEN, **changes}, arms=arms)
    return list(find_cautions(experiment.arms, experiment.settings.base_dir))


def test_bodies_that_are_pretrained_for_a_game_of_messages_call_for_a_caution():
    (text,) = said(pretrain_agents=True)
    assert "'nip'" in text
    assert "prover and verifier should learn to talk" in text
    assert "imitation.agents" in text


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pretrain_agents": True, "interaction_protocol": "solo_verifier"},
        {"pretrain_agents": True, "nip_protocol": {"max_message_rounds": 1}},
        {"pretrain_agents": True, "agents": {"_default": {"is_random": True}}},
        {"pretrain_agents": True, "trainer": "solo_agent"},
    ],
)
def test_where_nobody_is_pretrained_or_nobody_talks_there_is_none(changes):
    assert said(**changes) == []


def test_it_is_said_of_the_arms_that_it_is_about():
    arms = {"alone": {"interaction_protocol": "solo_verifier"}, "again": {"seed": 1}}
    (text,) = said(arms, pretrain_agents=True)
    assert text.endswith("(arm main, again)")


def test_a_run_notes_it_once(tmp_path, caplog):
    folder = RunFolder.create(tmp_path, RunManifest(run_id="demo-1", name="demo"))
    experiment = resolve({**GIVEN, "pretrain_agents": True})
    for _ in range(2):
        RunRecorder(folder, experiment.store, {}, experiment.keys, None, None)
    (event,) = folder.read_events()
    assert event["kind"] == "caution"
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_plan_says_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["plan", str(DEMO), "pretrain_agents=true"])
    assert result.exit_code == 0, result.output
    assert "pretrain_agents: got true with the protocol 'nip'" in " ".join(result.output.split())
