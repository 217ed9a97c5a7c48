"""Studies of the repository: their files stand for the commands that wrote the published pages."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from flows.cli.main import app
from flows.studies.choices import Lock, choose, read_lock
from flows.studies.commands import StudyCommands
from flows.studies.steps import Part, Step
from ratchet.experiment_files.study_file import load_study
from ratchet.reports.claims import check_claims
from ratchet.reports.comparison.options import reference_values
from ratchet.reports.comparison.published import read_published

ROOT = Path(__file__).parents[1]
STUDIES = sorted(path.stem for path in (ROOT / "experiments" / "studies").glob("*.yaml"))
RESULTS = ROOT / "docs" / "results"
PAGES = sorted(
    path.relative_to(RESULTS).with_suffix("").as_posix()
    for path in [*RESULTS.glob("*.json"), *RESULTS.glob("[se]*/*.json")]
)


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("RATCHET_STUDY_STORE", raising=False)


@cache
def commands(name: str) -> StudyCommands:
    return StudyCommands.load(load_study(f"experiments/studies/{name}.yaml"), parallel=2)


def steps(name: str) -> list[Step]:
    lock = read_lock(commands(name).study)
    return [*commands(name).searches(lock, Part.SEARCH), *commands(name).runs(lock)]


def meaning(command: Sequence[str]) -> dict[str, Any]:
    """Return the options of a command: without their order, the number of processes, and `~arms`
    of values that arms did not set when the search ran."""
    _, name, *arguments = command
    context = typer.main.get_command(app).get_command(None, name).make_context(name, [*arguments])
    options = {**context.params, "command": name, "parallel": None}
    if options.get("reference"):
        options["reference"] = reference_values(options["reference"])
    if options.get("assignments"):
        chosen = [each for each in options["assignments"] if each.count(".") < 2 or each[0] != "~"]
        options["assignments"] = sorted(each for each in chosen if each != "preregistered=null")
    return options


def test_each_page_has_a_study():
    pages = {option for name in STUDIES for step in steps(name) for option in step.command}
    assert all(f"docs/results/{page}.md" in pages for page in PAGES)
    assert sorted(STUDIES) == sorted(page for page in PAGES if "/" not in page)


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_a_studys_commands_are_those_of_its_pages(name):
    sweeps = {step.sweep: step.command for step in steps(name) if step.sweep}
    compared = 0
    for step in steps(name):
        if "--update-page" not in step.command:
            continue
        page = Path(step.command[step.command.index("--update-page") + 1])
        published = read_published(page.with_suffix(".json")).commands
        written = [meaning(shlex.split(command)) for command in published]
        assert written == [meaning(sweeps[step.command[2]]), meaning(step.command)]
        compared += 1
    sections = commands(name).study.sections
    assert compared == 1 + len(sections.search) + len(sections.after)


@pytest.mark.parametrize("name", STUDIES)
def test_the_locked_choices_follow_from_the_published_searches(name):
    study = commands(name).study
    chosen = {
        search.page.as_posix(): choose(search, read_published(search.page.with_suffix(".json")))
        for search in study.sections.search
    }
    assert read_lock(study).choices == chosen


@pytest.mark.parametrize("name", STUDIES)
def test_an_experiment_has_the_values_that_its_study_chose(name):
    lock = read_lock(commands(name).study)
    assert [s.command for s in commands(name).runs(lock)] == [
        s.command for s in commands(name).runs(Lock())
    ]


@pytest.mark.parametrize("name", STUDIES)
def test_claims_are_true(name):
    study = commands(name).study
    claims = check_claims(study.sections.claims, study.data, study.attack_data)
    assert len(claims) >= 4
    assert [str(claim) for claim in claims if not claim.holds] == []


def test_attacks_are_published():
    attacked = [name for name in STUDIES if commands(name).study.sections.attacks]
    data = {commands(name).study.attack_data for name in attacked}
    assert data == {path.relative_to(ROOT) for path in (RESULTS / "attacks").glob("*.json")}
