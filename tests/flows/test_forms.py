"""Forms of deployments: fields, validation, and conversion of submitted values."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from flows import deployed
from flows.experiment_form import experiment_form
from flows.forms import LEFT_OUT, chosen_name, describe, overrides, values
from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import load_experiment
from ratchet.parameters.reading.yaml_files import parse_yaml

ROOT = Path(__file__).parents[2]
FLOWS = ("experiment_from_file", "sweep_from_file", "retest", "analysis")


def form(name: str) -> dict[str, Any]:
    return parameter_schema(getattr(deployed, name)).model_dump()


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "experiments" / "custom").mkdir(parents=True)
    text = "{scenario: graph_isomorphism, trainer: vanilla_ppo, dataset: generated}"
    for name in ("one.yaml", "custom/two.yml"):
        (tmp_path / "experiments" / name).write_text(text)
    (tmp_path / "runs" / "one-1234").mkdir(parents=True)
    (tmp_path / "runs" / "one-1234" / "manifest.json").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_form_offers_the_available_values(project):
    fields = form("experiment_from_file")["properties"]
    found, free = fields["file"]["anyOf"]
    assert found["enum"] == ["experiments/custom/two.yml", "experiments/one.yaml"]
    assert free["title"] == "another file"
    assert "nip" in fields["protocol"]["anyOf"][0]["enum"]
    assert "vanilla_ppo" in fields["trainer"]["anyOf"][0]["enum"]
    assert form("retest")["properties"]["run"]["anyOf"][0]["enum"] == ["one-1234"]
    assert {"sections", "agents", "settings"}.isdisjoint(fields)


@pytest.mark.parametrize("name", FLOWS)
def test_a_form_describes_each_field_and_prefills_none(name, project):
    for field, schema in form(name)["properties"].items():
        assert schema["description"], field
        assert schema.get("default", LEFT_OUT) is not None, "the UI would submit null"


DEMO = ROOT / "experiments" / "demo.yaml"


@pytest.fixture(scope="module")
def demo() -> dict[str, Any]:
    return experiment_form(load_experiment(DEMO), "demo.yaml", form("experiment_from_file"))


def test_the_form_of_a_file_has_the_parameters_that_it_reads_in_order(demo):
    assert demo["properties"]["file"]["enum"] == ["demo.yaml"]
    assert "Value: `52`" in demo["properties"]["iterations"]["description"]
    parameters = demo["properties"]["sections"]["properties"]
    assert [each["position"] for each in parameters.values()] == [*range(len(parameters))]
    names = list(parameters)
    order = ["dataset", "graph_isomorphism", "nip_protocol", "agents", "rl", "ppo", "settings"]
    assert [name for name in names if name in order] == order
    assert {"spg", "language", "code_validation", "debate_protocol"}.isdisjoint(names)
    assert list(parameters["agents"]["properties"]) == ["_default", "prover", "verifier"]
    assert "`num_pairs: 6400`" in parameters["graph_isomorphism"]["description"]
    _, rl = parameters["rl"]["anyOf"]
    gamma = rl["properties"]["gamma"]
    assert (gamma["minimum"], gamma["maximum"], gamma["type"]) == (0, 1, "number")
    assert gamma["description"] == "Discount factor of later rewards. Default: 0.9."
    lines = rl["properties"]["frames_per_batch"]["description"]
    assert lines.endswith("Value: `3072`. Default: 1000.")
    assert "actor" in rl["properties"]["body_lr_factor"]["properties"]


def test_a_form_submits_nothing_by_itself(demo):
    """Prefect's UI submits defaults, null for its type, and false for untouched switches."""

    def check(node: Any) -> None:
        if isinstance(node, list):
            [check(each) for each in node]
        elif isinstance(node, dict):
            assert node.get("type") not in ("null", "boolean")
            assert "default" not in node or not isinstance(node["default"], str | float | bool)
            assert "oneOf" not in node
            [check(each) for name, each in node.items() if name != "default"]

    check(demo["properties"]["sections"]["properties"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shown", "hidden"),
    [
        ("text_demo", {"text_rl", "pure_text_ei"}, {"solo_agent", "nip_protocol", "imitation"}),
        (
            "reverse_grpo",
            {"language", "grpo", "agents", "dataset"},
            {"ppo", "text_rl", "protocol_common", "zk_protocol", "solo_agent"}
            | {"pretrain_agents", "d_representation", "message_size"},
        ),
        (
            "cartpole_dqn",
            {"torchrl", "gymnasium"},
            {"ppo", "language", "protocol_common", "zk_protocol", "solo_agent", "imitation"}
            | {"pretrain_agents", "d_representation", "message_size", "agents"},
        ),
        ("demo", {"zk_protocol", "imitation", "message_size", "validation"}, set()),
    ],
)
def test_sections_of_other_trainers_and_protocols_are_left_out(name, shown, hidden):
    file = ROOT / "experiments" / f"{name}.yaml"
    schema = experiment_form(load_experiment(file), name, form("experiment_from_file"))
    sections = schema["properties"]["sections"]["properties"].keys()
    assert shown <= sections
    assert hidden.isdisjoint(sections)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "offered", "others"),
    [
        ("demo", {"vanilla_ppo", "solo_agent"}, {"grpo", "pure_text_ei", "torchrl_dqn"}),
        ("text_demo", {"pure_text_ei", "pure_text_malt"}, {"grpo", "vanilla_ppo", "solo_agent"}),
        ("reverse_grpo", {"grpo"}, {"pure_text_ei", "vanilla_ppo", "torchrl_dqn"}),
        ("cartpole_dqn", {"torchrl_dqn", "vanilla_ppo"}, {"grpo", "solo_agent", "pure_text_ei"}),
    ],
)
def test_the_form_of_a_file_offers_the_trainers_that_fit_its_scenario(name, offered, others):
    general = form("experiment_from_file")
    file = ROOT / "experiments" / f"{name}.yaml"
    schema = experiment_form(load_experiment(file), name, general)["properties"]["trainer"]
    registered, free = schema["anyOf"]
    assert offered <= set(registered["enum"])
    assert others.isdisjoint(registered["enum"])
    assert others | offered <= set(general["properties"]["trainer"]["anyOf"][0]["enum"])
    assert free["title"] == "file.py:Class"
    assert "The trainer. Value: " in schema["description"]


REFUSED = [
    {"seed": -1},
    {"seed": "x"},
    {"iterations": 0},
    {"budget": 0},
    {"trainer": ""},
    {"overrides": ["seed"]},
    {"sections": {"rl": {"gamma": 1.5}}},
    {"sections": {"rl": {"gama": 0.5}}},
    {"sections": {"rl": ["gamma"]}},
    {"sections": {"settings": {"retries": -1}}},
]


@pytest.mark.parametrize("wrong", REFUSED, ids=str)
def test_bad_values_are_refused_in_the_form(wrong, demo):
    ways = {"raise_on_error": True, "ignore_required": False}
    validate({"file": "demo.yaml"}, demo, **ways)
    with pytest.raises(Exception, match=next(iter(wrong))):
        validate({"file": "demo.yaml", **wrong}, demo, **ways)


def test_parameters_stored_by_earlier_forms_still_run(project):
    stored = {"file": "experiments/one.yaml", "sections": {"rl": None, "spg": None}}
    validate(stored, form("experiment_from_file"), raise_on_error=True, ignore_required=False)
    assert overrides({}, stored["sections"]) == []


def test_submitted_values_are_parsed_like_the_command_line(project):
    sections = {"rl": {"gamma": 0.5, "lr": 1e-5, "body_lr_factor": {"actor": 0.5}}, "ppo": None}
    sections["agents"] = {"prover": {"d_gnn": 8}}
    top = {"seed": 3, "rl.num_iterations": 7, "trainer": LEFT_OUT, "interaction_protocol": None}
    found = overrides(top, sections, {"retries": 0}, ["rl.gamma=0.25"])
    experiment = load_experiment("experiments/one.yaml", found)
    parameters = experiment.hyper_params
    assert (parameters.seed, parameters.rl.num_iterations, parameters.rl.gamma) == (3, 7, 0.25)
    assert (parameters.rl.lr, parameters.rl.body_lr_factor.actor) == (1e-5, 0.5)
    assert parameters.agents["prover"].d_gnn == 8
    assert experiment.settings.retries == 0
    lines = {"rl": ["gamma=0.5"], "agents": {"prover": ["d_gnn=8"], "verifier": {"d_gnn": 4}}}
    expected = ["agents.verifier.d_gnn=4", "rl.gamma=0.5", "agents.prover.d_gnn=8"]
    assert overrides({}, lines) == expected
    wrong = overrides({}, {"ppo": {"clip_epsilon": "much"}})
    with pytest.raises(ParameterError, match=r"ppo\.clip_epsilon"):
        load_experiment("experiments/one.yaml", wrong)
    assert overrides({"seed": LEFT_OUT}, None, LEFT_OUT, LEFT_OUT) == []
    assert values("seed", [0, 1]) == ["seed=0,1"]
    assert values("trainer", LEFT_OUT) == []
    (text,) = overrides({"text": "a “b” 😀\n"})
    assert parse_yaml(text.partition("=")[2], "form") == "a “b” 😀\n"


SEARCH = """
scenario: graph_isomorphism
trainer: vanilla_ppo
dataset: generated
sweep:
  kind: optuna
  metric: train/verifier.accuracy
  num_trials: 3
  parameters: {rl.lr: {kind: uniform, low: 0.1, high: 0.2}}
"""


@pytest.mark.parametrize(
    ("text", "sent", "num_members", "varies"),
    [
        (SEARCH, {}, 3, ["rl.lr"]),
        (SEARCH, {"overrides": ["sweep.num_trials=5"]}, 5, ["rl.lr"]),
        (SEARCH.partition("sweep")[0], {"seeds": [1, 2]}, 2, ["seed"]),
    ],
)
def test_a_sweep_from_a_form_has_the_members_of_its_file(
    text, sent, num_members, varies, project, monkeypatch
):
    (project / "search.yaml").write_text(text)
    asked = []

    async def play(resolved, parallel):
        asked.append(resolved)
        return []

    monkeypatch.setattr(deployed, "run_members", play)
    asyncio.run(deployed.sweep_from_file.fn(file="search.yaml", **sent))
    (resolved,) = asked
    assert resolved.num_members == num_members
    assert list(resolved.spec.parameters) == varies


def test_a_sweep_form_without_varying_parameters_is_refused(project):
    with pytest.raises(ParameterError, match="no parameter varies"):
        asyncio.run(deployed.sweep_from_file.fn(file="experiments/one.yaml"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("swinging-nightingale", "demo seed=3"),
        ("nu4-wilson", "demo seed=3 (nu4-wilson)"),
        ("beta-test", "demo seed=3 (beta-test)"),
        ("my first run", "my first run"),
        ("my-run", "my-run"),
        ("demo seed=3", "demo seed=3"),
    ],
)
def test_a_run_is_named_after_its_experiment_unless_the_user_named_it(given, expected):
    assert chosen_name(given, describe("experiments/demo.yaml", ["seed=3"])) == expected


def test_long_names_are_truncated():
    assert len(describe("demo.yaml", ["agents.prover.d_gnn=8"] * 9, "sweep")) == 100
