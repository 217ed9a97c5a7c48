"""Project files exist and agree with the code."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import ratchet

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORT_LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
TIERS = {"all", "fast", "slow"}


def read_yaml(path: str) -> dict:
    content = yaml.safe_load((ROOT / path).read_text())
    assert isinstance(content, dict)
    return content


def steps_of_the_workflow() -> list[dict]:
    jobs = read_yaml(".github/workflows/ci.yml")["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def test_the_workflow_runs_what_ci_runs_and_each_tier_once():
    commands = [step["run"] for step in steps_of_the_workflow() if "run" in step]
    assert commands == [".ci/run ${{ matrix.tier }}"]
    (job,) = read_yaml(".github/workflows/ci.yml")["jobs"].values()
    assert set(job["strategy"]["matrix"]["tier"]) == TIERS - {"all"}


def test_ci_uses_existing_targets_and_refuses_unknown_tiers():
    script = (ROOT / ".ci" / "run").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", script))
    assert {"setup", "check", "docs", "test", "test-slow"} <= named <= targets
    refused = subprocess.run(
        [ROOT / ".ci" / "run", "quick"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "got 'quick'" in refused.stdout


def test_dependabot_ignores_versions_outside_required_bounds():
    (pip, _) = read_yaml(".github/dependabot.yml")["updates"]
    ignored = {entry["dependency-name"]: entry["versions"] for entry in pip["ignore"]}
    bounds = dict(re.findall(r"^([a-z]+)>=[\d.]+,<([\d.]+)$", _dependencies(), re.MULTILINE))
    for name in ("fastapi", "sqlalchemy", "torch"):
        assert ignored[name] == [f">={bounds[name]}"]


def _dependencies() -> str:
    return "\n".join(PROJECT["dependencies"])


def test_versions_and_dates_agree():
    citation = read_yaml("CITATION.cff")
    assert PROJECT["version"] == ratchet.__version__ == str(citation["version"])
    heading = f"## {citation['version']} ({citation['date-released']})"
    assert heading in (ROOT / "CHANGELOG.md").read_text().splitlines()


def test_the_citation_has_the_required_fields():
    citation = read_yaml("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    assert all("name" in author or "family-names" in author for author in citation["authors"])
    assert citation["type"] in ("software", "dataset")
    assert citation["license"] == PROJECT["license"] == "MIT"
    assert citation["repository-code"] == PROJECT["urls"]["Source"]


def test_the_licence_agrees_with_the_metadata():
    assert PROJECT["license-files"] == ["LICENSE"]
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")


def test_every_dependency_has_a_known_version():
    frozen = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["docs"]]
    names = {re.split(r"[\[<>=]", line)[0].lower() for line in wanted}
    assert names - frozen == set()


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_have_targets(name):
    links = re.findall(r"\]\(([^)#\s]+)", (ROOT / name).read_text())
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []


def test_the_picture_of_the_layers_contains_all_layers():
    picture = (ROOT / "docs" / "pictures" / "layers.svg").read_text()
    for contract in IMPORT_LINTER["contracts"]:
        if contract["type"] == "layers" and contract.get("containers", ["ratchet"]) == ["ratchet"]:
            ground = 1 if "containers" in contract else 0  # drawn as one layer
            for layer in contract["layers"][: len(contract["layers"]) - ground]:
                for name in layer.split(" : "):
                    assert name in picture, f"add {name} to docs/pictures/layers.svg"
