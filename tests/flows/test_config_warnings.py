"""Warnings about valid but rarely intended configurations, by plans and once per run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from flows.runs.recorder import RunRecorder
from flows.runs.resolve import resolve
from ratchet.tracking.manifest import RunManifest
from ratchet.tracking.run_folder import RunFolder
from trainers.config_warnings import CONFIG_WARNING, find_config_warnings

GIVEN = {"scenario": "graph_isomorphism", "dataset": "generated", "trainer": "vanilla_ppo"}
DEMO = Path(__file__).parents[2] / "experiments" / "demo.yaml"


def said(arms=None, **changes):
    experiment = resolve({**GIVEN, **changes}, arms=arms)
    return list(find_config_warnings(experiment.arms, experiment.settings.base_dir))


def test_pretrained_bodies_in_a_protocol_with_messages_give_a_warning():
    (text,) = said(pretrain_agents=True)
    assert "'nip'" in text
    assert "prover and verifier should learn to communicate" in text
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
def test_no_warning_without_pretraining_or_messages(changes):
    assert said(**changes) == []


def test_a_warning_lists_the_arms_concerned():
    arms = {"alone": {"interaction_protocol": "solo_verifier"}, "again": {"seed": 1}}
    (text,) = said(arms, pretrain_agents=True)
    assert text.endswith("(arm main, again)")


WIDE = {"agents": {"_default": {"d_gin_mlp": 128}}}
CONTROL = {"scenario": "gymnasium", "dataset": "CartPole-v1"}
DIGITS = {"scenario": "image_classification", "dataset": "digits"}


@pytest.mark.parametrize(
    ("device", "changes", "count"),
    [
        ("cuda:1", {}, 1),
        ("cuda", CONTROL, 1),
        ("cpu", {}, 0),
        ("cuda", WIDE, 0),
        ("cuda", DIGITS, 0),
        ("cuda", {**CONTROL, "agents": {"_default": {"hidden_sizes": [128]}}}, 0),
        ("cuda", {**CONTROL, "trainer": "torchrl_ppo"}, 0),
    ],
)
def test_small_networks_on_a_gpu_give_a_warning(device, changes, count):
    experiment = resolve({**GIVEN, **changes})
    texts = list(find_config_warnings(experiment.arms, None, device))
    assert len(texts) == count
    assert all("settings.device: cpu" in text for text in texts)


def test_a_run_logs_a_warning_once(tmp_path, caplog):
    folder = RunFolder.create(tmp_path, RunManifest(run_id="demo-1", name="demo"))
    experiment = resolve({**GIVEN, "pretrain_agents": True})
    recorder = RunRecorder(folder, experiment.store, {}, experiment.keys, None, None)
    for _ in range(2):
        recorder.note(CONFIG_WARNING, find_config_warnings(experiment.arms))
    (event,) = folder.read_events()
    assert event["kind"] == "caution"
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_plan_prints_the_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["plan", str(DEMO), "pretrain_agents=true"])
    assert result.exit_code == 0, result.output
    assert "pretrain_agents: got true with the protocol 'nip'" in " ".join(result.output.split())
