"""``ratchet list parameters`` searches the parameters of the reference documentation."""

from __future__ import annotations

import json
import subprocess
import sys

from typer.testing import CliRunner

from flows.cli.main import app
from ratchet.parameters.base import AGENT_MODELS, SECTIONS, SubParameters
from ratchet.parameters.reference import documented_sections, find_parameters

RUNNER = CliRunner()


def rows(*words: str) -> list[dict[str, str]]:
    result = RUNNER.invoke(app, ["list", "parameters", *words, "--json"])
    found: list[dict[str, str]] = json.loads(result.stdout)["tables"][0]["rows"]
    return found


def test_a_parameter_is_found_by_words_of_its_path_and_description() -> None:
    found = {row["parameter"]: row for row in rows("LIE_erasure", "erases")}[
        "binary_erasure_channel.lie_erasure_probability"
    ]
    assert (found["type"], found["default"]) == ("float in [0, 1]", "0.75")
    assert "the channel erases a prover's symbol" in found["description"]


def test_type_default_and_bounds_are_listed_below_the_description() -> None:
    shown = RUNNER.invoke(app, ["list", "parameters", "rl.num_epochs"]).stdout
    assert "Number of passes over an iteration's steps." in shown
    assert "int > 0, default 4" in shown
    types = {parameter.path: parameter.type for _, parameter in find_parameters([])}
    assert types["rl.gamma"] == "float in [0, 1]"
    assert types["rl.rollouts_per_iteration"] == "int > 0 | null"
    assert types["ppo.loss_type"] == "clip | kl_penalty"
    assert types["settings.num_rollout_samples"] == "int ≥ 0 | null"
    assert types["dataset_options.selected_classes"] == "list | null"


def _is_built_in(model: type[SubParameters]) -> bool:
    return model.__module__.startswith("ratchet.")


def test_every_parameter_has_its_own_sentence() -> None:
    sentences: dict[tuple[str, str], str] = {}
    plugins = {name for name, each in SECTIONS.items() if not _is_built_in(each.model)}
    plugins |= {name for name, model in AGENT_MODELS.items() if not _is_built_in(model)}
    for section in documented_sections():
        for parameter in section.parameters if section.name not in plugins else ():
            folder, _, _ = parameter.path.rpartition(".")
            assert parameter.description.endswith("."), f"{parameter.path}: add it to the docstring"
            other = sentences.setdefault(
                (f"{section.name} {folder}", parameter.description), parameter.path
            )
            assert other == parameter.path, f"{parameter.path} has the sentence of {other}"


def test_fields_of_nested_sections_and_mappings_are_listed() -> None:
    paths = {parameter.path for _, parameter in find_parameters([])}
    assert {"language.optimizer.lr", "evaluation.suites.NAME.task"} <= paths


def test_all_parameters_are_listed_including_settings() -> None:
    paths = {parameter.path for _, parameter in find_parameters([])}
    assert {"seed", "rl.lr", "ppo.clip_epsilon", "agents.NAME.d_gnn", "settings.device"} <= paths


def test_words_are_found_at_their_starts() -> None:
    paths = {row["parameter"] for row in rows("lr")}
    assert {"rl.lr", "rl.anneal_lr", "rl.body_lr_factor"} <= paths
    assert not any("repetition_penalty" in path for path in paths), "its text has `already`"


def test_a_section_is_called_one_and_equal_parameters_of_agents_are_one_row() -> None:
    found = rows("lr")
    by_path = {row["parameter"]: row for row in found}
    assert len(by_path) == len(found)
    factors = by_path["agents.NAME.agent_lr_factor"]
    assert (factors["type"], factors["default"]) == ("section", "")
    assert factors["scenarios"] == "all scenarios"
    assert by_path["agents.NAME.warm_up.lr"]["scenarios"] == "language_task"
    shown = RUNNER.invoke(app, ["list", "parameters", "agent_lr_factor", "parts"]).stdout
    assert "section; all scenarios" in shown
    assert "its own" not in shown


def test_no_match_is_reported() -> None:
    result = RUNNER.invoke(app, ["list", "parameters", "lr", "zebra"])
    assert "No parameter contains lr and zebra." in result.stderr


def test_listing_parameters_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom flows.cli.main import app\n"
        "assert CliRunner().invoke(app, ['list', 'parameters', 'lr']).exit_code == 0\n"
        "assert not {'torch', 'prefect', 'mlflow', 'transformers'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
