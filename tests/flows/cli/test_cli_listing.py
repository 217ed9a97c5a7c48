"""Listings of ``ratchet list`` and ``ratchet runs``."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flows.cli.list_names import _REGISTRIES, _registries
from flows.cli.main import app
from ratchet.reports.display_table import DisplayTable

RUNNER = CliRunner()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("trainers", ["vanilla_ppo", "built-in"]),
        ("protocols", ["debate", "built-in"]),
        ("scenarios", ["graph_isomorphism", "built-in"]),
        ("analysers", ["code_quoting", "built-in"]),
        ("environments", ["CartPole-v1", "dataset", "built-in"]),
        ("environments", ["python_tool", "language_task.environment", "built-in"]),
        ("tasks", ["reverse", "built-in"]),
        ("evaluators", ["partial", "built-in"]),
        ("networks", ["listed_network", "package", "listed_plugin", "3.4"]),
        ("experiments", ["experiments/demo.yaml", "ratchet", "run", "it"]),
        ("trainers", ["reinforce", "built-in", "REINFORCE,", "with", "a", "critic"]),
        ("protocols", ["nip", "built-in", "Nash", "interactive", "proof:", "a", "prover"]),
        ("environments", ["CartPole-v0", "dataset", "built-in", "A", "cart", "is", "pushed"]),
        ("sweeps", ["grid", "built-in", "Every", "combination", "of", "values,"]),
    ],
)
def test_list(
    kind: str,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    install: Callable[..., Path],
) -> None:
    install("listed_plugin", "networks", "listed_network", "Listed", "", version="3.4")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "demo.yaml").write_text("# ratchet run it\nscenario: a\n")
    result = RUNNER.invoke(app, ["list", kind])
    assert result.exit_code == 0
    assert expected in [line.split()[: len(expected)] for line in result.stdout.splitlines()]


def test_an_experiment_is_listed_with_the_first_paragraph_of_its_comment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()
    file = tmp_path / "experiments" / "graph_isomorphism_help_variants.yaml"
    file.write_text("# First half of a sentence,\n# second half.\n#\n# More.\nscenario: a\n")
    listed = RUNNER.invoke(app, ["list", "experiments", "--json"]).stdout
    (row,) = json.loads(listed)["tables"][0]["rows"]
    assert row["about"] == "First half of a sentence, second half."
    narrow = Console(width=80, file=io.StringIO())
    narrow.print(DisplayTable("", list(row), [tuple(row.values()), ("a", 9 * "some words ")]))
    assert row["experiment"] in narrow.file.getvalue(), "paths are not wrapped"  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", _REGISTRIES)
def test_every_built_in_class_has_a_description(kind: str) -> None:
    for registry in _registries(kind):
        described = {each.name: each.description for each in registry.entries()}
        assert all(described[name] for name in registry.built_in), described
        assert not any("``" in about for about in described.values())


def test_words_are_searched_in_descriptions() -> None:
    result = RUNNER.invoke(app, ["list", "trainers", "off-policy or", "zebra"])
    assert "No trainers" in result.stderr
    result = RUNNER.invoke(app, ["list", "trainers", "Q-learning"])
    assert "torchrl_dqn" in result.stdout
    assert "vanilla_ppo" not in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", _REGISTRIES)
def test_listing_imports_no_heavy_packages_and_explains_custom_classes(kind: str) -> None:
    group = {"tasks": "language_tasks"}.get(kind.value, kind.value)
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom flows.cli.main import app\n"
        f"result = CliRunner().invoke(app, ['list', {kind.value!r}])\n"
        "assert result.exit_code == 0, result\n"
        f"assert 'in the group ratchet.{group}' in result.stdout\n"
        "assert not {'torch', 'prefect', 'gymnasium', 'transformers'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_without_runs_the_command_to_start_one_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(app, ["runs"])
    assert result.exit_code == 0
    assert "Start one: `ratchet run FILE`" in result.stdout


def test_runs_are_listed_with_their_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ratchet.tracking.manifest import RunManifest
    from ratchet.tracking.result_table import ResultTable
    from ratchet.tracking.run_folder import RunFolder

    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create("runs", RunManifest(run_id="demo-12345678", name="demo"))
    columns = {"datapoint_id": [0, 1, 2, 3], "y": [0, 1, 0, 1], "decision": [0, 1, 0, 0]}
    folder.write_table(ResultTable("test", {**columns, "correct": [1, 1, 1, 0]}))
    result = RUNNER.invoke(app, ["runs"])
    assert "demo-12345678" in result.stdout
    assert "main 75.0 %" in result.stdout
