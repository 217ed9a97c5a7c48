"""``ratchet study``: the same pages as by its commands, however often it is killed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from flows.cli.main import app

RATCHET = Path(sys.executable).with_name("ratchet")
EXPERIMENT = """
# Tiny.
scenario: binary_erasure_channel
trainer: vanilla_ppo
dataset: generated
interaction_protocol: adp
validation: {size: 0.2}
binary_erasure_channel: {num_datapoints: 60, dataset_seed: 1}
rl: {frames_per_batch: 64, minibatch_size: 32, lr: 0.01, num_iterations: 1, num_test_iterations: 1}
arms:
  alone: {interaction_protocol: solo_verifier}
"""
STUDY = """
title: Tiny
experiment: ../tiny.yaml
search:
  - title: "Search: tiny"
    page: docs/searches/tiny.md
    seeds: 0..1
    values: {rl.lr: [0.003, 0.03]}
    drop: [alone]
    against: 0.003
    choose: {rule: smallest_within, points: 100, follow: {alone: main}}
run: {seeds: 100..101}
compare: {baselines: [main], references: {known: 0.9}}
attacks: {seeds: [0], learning_rates: [0.01], iterations: 1}
after:
  - {name: more, title: More, page: docs/more.md, seeds: 100, changes: {rl.num_iterations: 2}}
claims: [mean(main) >= 0, "count(alone <= 1) == 2"]
page: docs/tiny.md
"""
WRITTEN = ["tiny.md", "tiny.json", "tiny.svg", "searches/tiny.md", "more.md", "attacks/tiny.json"]


def write_study(folder, text=STUDY, **changes):
    (folder / "studies").mkdir(parents=True)
    (folder / "tiny.yaml").write_text(EXPERIMENT)
    content = {**yaml.safe_load(text), **changes}
    (folder / "studies" / "tiny.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


def ratchet(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(write_study(tmp_path / "study"))
    return tmp_path / "study"


def test_a_dry_run_checks_all_runs_and_lists_the_commands(folder):
    result = ratchet("study", "studies/tiny.yaml", "--dry-run", "--json", "--parallel", "2")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    (table,) = document["tables"]
    assert [(row["part"], row["runs"]) for row in table["rows"]] == [
        *[("search", 4), ("search", 0), ("run", 2), ("attacks", 0), ("page", 0)],
        *[("after", 1), ("after", 0)],
    ]
    assert document["notes"][-1] == "Study tiny: 7 runs, 0 finished"
    assert document["notes"][2].startswith("ratchet sweep tiny.yaml --name tiny --parallel 2 seed=")
    assert sorted(path.name for path in folder.iterdir()) == ["studies", "tiny.yaml"]


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        ([], {"page": None}, "page: got None (null)"),
        ([], {"experiment": "x.yaml"}, "x.yaml: no such file"),
        ([], {"run": {"seeds": 5, "changes": {"rl.lrr": 1}}}, "rl.lrr"),
        (["--only", "run"], {}, "has no choice of the search docs/searches/tiny.md. First run"),
        (["--only", "runs"], {}, "unknown 'runs'. Did you mean 'run'"),
        (["--seed", "100"], {}, "got --seed or --verify, expected both"),
        (["--seed", "5", "--verify"], {}, "--seed: got 5, expected one of [100, 101]"),
        (["rl.lr=1"], {}, "got 'rl.lr=1', expected settings.NAME=value"),
    ],
)
def test_mistakes_are_named(arguments, changes, message, tmp_path, monkeypatch):
    monkeypatch.chdir(write_study(tmp_path / "wrong", **changes))
    result = ratchet("study", "studies/tiny.yaml", "--dry-run", *arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())


def run(folder, *arguments):
    """Run a command in a folder; the tests share stages."""
    home = f"settings.home={folder.parent / 'home'}"
    command = [RATCHET, *arguments, home, "--no-progress"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def pages(folder):
    return {name: (folder / "docs" / name).read_bytes() for name in WRITTEN}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of a study that ran without interruption."""
    folder = write_study(tmp_path_factory.mktemp("studies") / "finished")
    result = run(folder, "study", "studies/tiny.yaml")
    assert result.returncode == 0, result.stderr
    assert "2 claims are true." in result.stdout
    (folder / "printed.txt").write_text(result.stdout)
    return folder


def first_words(command):
    """Return a command without the settings of this machine."""
    return [word for word in command if not word.startswith("settings.")]


@pytest.mark.in_turn(1, of="studies")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_writes_the_pages_of_its_commands(finished):
    folder = write_study(finished.parent / "by_hand")
    printed = (finished / "printed.txt").read_text().splitlines()
    commands = [shlex.split(line[2:]) for line in printed if line.startswith("$ ")]
    assert [words[1] for words in commands] == [
        *["sweep", "compare", "sweep", "exploit", "compare", "sweep", "compare"]
    ]
    for words in map(first_words, commands):
        home = [f"settings.home={finished.parent / 'home'}"] * (words[1] == "sweep")
        as_json = ["--json"] * (words[1] == "exploit")
        made = subprocess.run(
            [RATCHET, *words[1:], *home, *as_json], cwd=folder, capture_output=True, check=True
        )
        if as_json:
            (folder / "docs" / "attacks").mkdir()
            (folder / "docs" / "attacks" / "tiny.json").write_bytes(made.stdout)
    assert pages(folder) == pages(finished)


@pytest.mark.in_turn(1, of="studies")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_study_ends_with_the_same_pages(finished):
    folder = write_study(finished.parent / "killed")
    home = f"settings.home={finished.parent / 'other_home'}"
    command = [RATCHET, "study", "studies/tiny.yaml", home, "--no-progress"]
    for event in ("runs/*/manifest.json", "docs/searches/tiny.json", "runs/tiny/sweep.json"):
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=-3)
        while not list(folder.glob(event)):
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert pages(folder) == pages(finished)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_seed_is_verified(finished):
    verify = ["study", "studies/tiny.yaml", "--seed", "101", "--verify"]
    result = run(finished, *verify)
    assert result.returncode == 0, result.stderr
    assert "All decisions as published: test of arm alone with the seed 101" in result.stdout
    data = finished / "docs" / "tiny.json"
    published = json.loads(data.read_text())
    published["runs"][-1]["tests"]["test"]["sha256"] = "0" * 64
    data.write_text(json.dumps(published))
    result = run(finished, *verify)
    assert result.returncode == 1
    assert "Different from published" in result.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_false_claim_and_a_wrong_figure_fail(finished):
    study, page = finished / "studies" / "tiny.yaml", finished / "docs" / "tiny.md"
    page.write_text(page.read_text() + "\nIt has 1234 %<!-- = mean(main) -->.\n")
    study.write_text(study.read_text().replace("mean(main) >= 0", "mean(main) > 1"))
    result = run(finished, "study", "studies/tiny.yaml", "--only", "page")
    assert result.returncode == 1
    assert "docs/tiny.md: claim is false: mean(main) > 1 (" in result.stderr
    assert "docs/tiny.md: figure is wrong: line " in result.stderr
    assert ": got 1234, expected " in result.stderr
