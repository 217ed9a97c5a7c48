"""``ratchet new`` writes a folder whose experiment runs and whose test passes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from flows.cli.new import EXAMPLES, Kind
from ratchet.experiment_files.loading import load_experiment
from ratchet.parameters.base import SECTIONS

RUNNER = CliRunner()
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in a temporary folder; forget its sections, since the keys of later tests read them."""
    monkeypatch.chdir(tmp_path)
    before = set(SECTIONS)
    yield
    for name in set(SECTIONS) - before:
        if SECTIONS[name].model.__module__.startswith("ratchet_plugin_"):
            del SECTIONS[name]


def create(kind: Kind, purpose: str) -> Path:
    """Create a folder with a different name for each test: names stay registered in a process."""
    folder = Path(f"{purpose}-{kind}")
    result = RUNNER.invoke(app, ["new", str(folder), "--kind", kind])
    assert result.exit_code == 0, result.output
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", Kind)
def test_a_new_experiment_can_be_planned(kind: Kind) -> None:
    folder = create(kind, "planned")
    module = folder.name.replace("-", "_")
    planned = RUNNER.invoke(app, ["plan", str(folder / f"{module}.yaml")])
    assert planned.exit_code == 0, planned.output
    assert "stages: 0 stored" in planned.stdout


@pytest.mark.parametrize("kind", Kind)
def test_new_files_have_the_new_names_only(kind: Kind) -> None:
    folder = create(kind, "renamed")
    module = folder.name.replace("-", "_")
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    further = EXAMPLES[kind].further
    assert texts.keys() == ({module + further[1]} if further else set()) | {
        *(f"{module}.yaml", f"{module}.py", f"test_{module}.py", "README.md")
    }
    old = ("custom_", "examples/", "Cards", '"cards"', "Sums", '"sums"', "HillClimbing")
    old += ("Doubling", "HighCard")
    assert [(name, each) for name, text in texts.items() for each in old if each in text] == []
    ruff = [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml")]
    ruff += ["--ignore", "E501,I001,T20", str(folder.resolve())]
    done = subprocess.run(ruff, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_new_study_lists_its_commands() -> None:
    folder = create(Kind.STUDY, "listed")
    listed = RUNNER.invoke(app, ["study", str(folder / "listed_study_study.yaml"), "--dry-run"])
    assert listed.exit_code == 0, listed.output
    assert "Study listed_study_study: 11 runs, 0 finished" in listed.stdout
    assert (
        f"ratchet sweep {folder}/listed_study.yaml --name listed_study_study_search"
        in listed.stdout
    )
    assert "--update-page results/listed_study.md" in listed.stdout


def test_a_new_text_scenario_says_how_its_agents_call_a_model() -> None:
    folder = create(Kind.TEXT_SCENARIO, "modelled")
    module = folder.name.replace("-", "_")
    file = folder / f"{module}.yaml"
    text = file.read_text()
    named = re.findall(r"#   (\{base_url: .+\})", text)
    addresses = []
    for agents in named:
        file.write_text(text.replace("{use_dummy_api: true}", agents))
        planned = RUNNER.invoke(app, ["plan", str(file)], env={"OPENAI_API_KEY": "sk-none"})
        assert planned.exit_code == 0, planned.output
        agent = load_experiment(file).hyper_params.agents["_default"]
        assert not agent.use_dummy_api
        addresses.append(agent.base_url)
    assert addresses == ["http://127.0.0.1:8399/v1", None], "of `ratchet llm serve`, and OpenAI"


def test_the_commands_to_continue_are_printed_and_in_the_readme() -> None:
    result = RUNNER.invoke(app, ["new", "games/card-game"])
    commands = [
        "ratchet plan games/card-game/card_game.yaml",
        "ratchet run games/card-game/card_game.yaml",
        "pytest games/card-game",
    ]
    assert [line.strip() for line in result.stdout.splitlines()[-3:]] == commands
    assert "\n".join(commands) in Path("games/card-game/README.md").read_text()


def test_an_existing_folder_is_refused_and_not_changed() -> None:
    Path("there").mkdir()
    result = RUNNER.invoke(app, ["new", "there"])
    assert result.exit_code == 2
    assert "new: there exists already" in result.stderr
    assert list(Path("there").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("random", "which is the name of an installed Python module"),
        ("vanilla_ppo", "which is registered already"),
        ("rl", "which is registered already"),
        ("1x", "expected a letter"),
        ("class", "expected a letter"),
        ("environment", "the copied example uses the name Environment"),
    ],
)
def test_a_name_that_would_clash_is_refused(name: str, problem: str) -> None:
    result = RUNNER.invoke(app, ["new", name])
    assert result.exit_code == 2
    assert problem in " ".join(result.stderr.split())
    assert not Path(name).exists()


@pytest.mark.in_turn(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_test_of_a_new_experiment_passes(kind: Kind) -> None:
    folder = create(kind, "tested")
    command = [sys.executable, "-m", "pytest", "-q", str(folder), "--rootdir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
