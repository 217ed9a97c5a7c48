"""``ratchet list parameters`` searches the parameters of the reference documentation."""

from __future__ import annotations

import json
import subprocess
import sys

from typer.testing import CliRunner

from flows.cli.main import app
from ratchet.parameters.reference import find_parameters

RUNNER = CliRunner()


def rows(*words: str) -> list[dict[str, str]]:
    result = RUNNER.invoke(app, ["list", "parameters", *words, "--json"])
    found: list[dict[str, str]] = json.loads(result.stdout)["tables"][0]["rows"]
    return found


def test_a_parameter_is_found_by_words_of_its_path_and_description() -> None:
    found = {row["parameter"]: row for row in rows("LIE_erasure", "erases")}[
        "binary_erasure_channel.lie_erasure_probability"
    ]
    assert (found["type"], found["default"]) == ("float", "0.75")
    assert "the channel erases a prover's symbol" in found["about"]


def test_all_parameters_are_listed_including_settings() -> None:
    paths = {parameter.path for _, parameter in find_parameters([])}
    assert {"seed", "rl.lr", "ppo.clip_epsilon", "agents.NAME.d_gnn", "settings.device"} <= paths
    assert all(parameter.about for _, parameter in find_parameters([]))
    assert not any(" at 0x" in parameter.type for _, parameter in find_parameters([]))


def test_no_match_is_reported() -> None:
    result = RUNNER.invoke(app, ["list", "parameters", "lr", "zebra"])
    assert "No parameter contains lr and zebra." in result.stderr


def test_listing_parameters_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom flows.cli.main import app\n"
        "assert CliRunner().invoke(app, ['list', 'parameters', 'lr']).exit_code == 0\n"
        "assert not {'torch', 'prefect', 'mlflow', 'transformers'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
