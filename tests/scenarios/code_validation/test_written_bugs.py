"""Buggy programs that a model writes: each is run, none is billed twice, and counts are exact."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ratchet.errors import (
    BudgetExceededError,
    DataError,
    LanguageModelError,
    MissingKeyError,
    ParameterError,
)
from ratchet.language_models.auxiliary_calls import ModelCalls
from ratchet.language_models.ledger import Ledger
from ratchet.language_models.pricing import Budget
from ratchet.language_models.usage import UsageMeter
from ratchet.parameters import ExperimentSettings, HyperParameters
from ratchet.rollouts.dataset import NestedArrayDictDataset
from ratchet.scenarios.code_validation.bug_writer import FILES, plain_form, read_program
from ratchet.scenarios.code_validation.dataset import build_code_validation_datasets
from ratchet.scenarios.registry import build_scenario, build_scenario_instance
from tasks.text.keys import TextArmKeys

sys.path.insert(0, str(Path(__file__).parents[2] / "language_models"))
from bug_service import USELESS, BugService
from local_services import Answer, error_body

SMALL = {"num_train": 8, "num_test": 2, "levels": (0, 1)}
PRICES = "models:\n  writer: {input: 1.0, output: 200.0}\n"


@pytest.fixture
def service():
    found = BugService()
    yield found
    found.close()


def parameters(service, dataset="generated", section=None, options=None, **generator):
    given = {"model_name": "writer", "base_url": service.url, "num_attempts": 3, **generator}
    return HyperParameters(
        scenario="code_validation",
        trainer="pure_text_ei",
        dataset=dataset,
        seed=3,
        code_validation=SMALL if section is None else section,
        dataset_options=options or {},
        bug_generator=given,
    )


def build(hyper_params, journal=None, ledger=None, **settings):
    usage = UsageMeter("build_scenario", ledger)
    chosen = ExperimentSettings(num_rollout_workers=4, **settings)
    with ModelCalls(chosen, usage, journal) as calls:
        return build_code_validation_datasets(hyper_params, calls), usage


def test_every_written_bug_fails_a_test_and_the_counts_add_up(service, tmp_path):
    made, usage = build(parameters(service, num_attempts=6))
    plain = build_code_validation_datasets(
        HyperParameters(
            scenario="code_validation",
            trainer="pure_text_ei",
            dataset="generated",
            seed=3,
            code_validation=SMALL,
        )
    )
    replies = 0
    for side, data in made.items():
        notes = data.notes
        replies += notes["replies"]
        assert notes["wanted"] == len(data) // 2
        useless = sum(notes.get(name, 0) for name in USELESS)
        assert useless + notes["written"] == notes["replies"]
        sources = data["source"].tolist()
        assert sources.count("bug_generator:writer") == notes["written"]
        assert data["y"].tolist() == plain[side]["y"].tolist(), "as balanced as mutants"
        right = data["y"] == 1
        assert data["solution"][right].tolist() == plain[side]["solution"][right].tolist()
        assert data["question"].tolist() == plain[side]["question"].tolist()
        for row in range(len(data)):
            solution = str(data["solution"][row])
            assert solution == plain_form(solution), "written as all others are"
            assert "The bug is here" not in solution
    assert replies == len(service.bodies) == usage.total.calls
    assert 0 < made["train"].notes["written"] < made["train"].notes["replies"]
    made["train"].save(tmp_path)
    loaded = NestedArrayDictDataset.load(tmp_path)
    assert loaded == made["train"]
    assert dict(loaded.notes) == dict(made["train"].notes), "stored with the data"
    seeds = [json.loads(body)["seed"] for body in service.bodies]
    assert len(set(seeds)) == len(seeds), "each attempt has a separate seed"


@pytest.mark.parametrize("fault", USELESS)
def test_replies_of_no_use_are_counted_and_mutants_stand_in(service, fault, caplog):
    service.manners = (fault,)
    made, _ = build(parameters(service, num_attempts=2))
    data = made["train"]
    is_run = fault in ("not_run", "no_bug")
    faults = {fault: 4, "not_new": 4} if is_run else {fault: 8}  # the same again is not run again
    assert dict(data.notes) == {"wanted": 4, "written": 0, "replies": 8, **faults}
    assert data["y"].tolist().count(0) == 4
    assert set(data["source"].tolist()) == {"generated"}
    assert "writer wrote 0 of 4 buggy programs of the train set; 4 are mutants" in caplog.text


@pytest.mark.slow
def test_what_was_answered_is_not_asked_for_again(service, tmp_path):
    hyper_params = parameters(service)
    expected, _ = build(hyper_params)
    service.bodies.clear()
    service.script = [Answer(400, error_body("no")) for _ in range(3)]
    with pytest.raises(LanguageModelError, match=r"bug_generator: 3 of 4 calls failed.*cached"):
        build(hyper_params, tmp_path / "journal")
    made, usage = build(hyper_params, tmp_path / "journal")
    assert made == expected
    assert sum(service.bodies.values()) == len(service.bodies) + 3, "only what failed is repeated"
    assert usage.total.calls == len(service.bodies)


def test_a_budget_stops_it_before_it_is_exceeded(service, tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text(PRICES)
    limit = 0.22  # room for one call at a time, and not for all
    ledger = Ledger(Budget(limit), tmp_path / "ledger.jsonl")
    with pytest.raises(BudgetExceededError):
        build(parameters(service), tmp_path / "journal", ledger, prices=str(prices))
    billed = sum(service.bodies.values()) * (11 * 1.0 + 7 * 200.0) / 1e6
    assert ledger.billed.at_most == pytest.approx(billed)
    assert 0 < billed <= limit


def test_a_service_that_withholds_an_answer_has_had_its_attempt(service, tmp_path):
    filtered = {"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}
    service.script = [Answer(body=filtered)]
    made, _ = build(parameters(service), tmp_path / "journal")
    assert made["train"].notes["no_program"] >= 1
    asked = sum(service.bodies.values())
    again, _ = build(parameters(service), tmp_path / "journal")
    assert again == made
    assert sum(service.bodies.values()) == asked


def test_an_answer_without_a_model_is_drawn_by_seed():
    class Nobody:
        url = "http://127.0.0.1:1/v1"

    hyper_params = parameters(Nobody, use_dummy_api=True)
    one, usage = build(hyper_params)
    other, _ = build(hyper_params)
    assert one == other
    assert one["train"].notes["written"] > 0
    assert usage.total.cost == 0


def apps_rows(count):
    """Sum two numbers, plus the row's own."""
    for i in range(count):
        tests = {"inputs": ["1 2\n", "-4 4\n"], "outputs": [f"{3 + i}\n", f"{i}\n"]}
        program = f"# sum\na, b = map(int, input().split())\nprint(a + b + {i})\n"
        broken = f"a, b = map(int, input().split())\nprint(a + a + {i})\n"
        yield {
            "question": f"Print the sum of two numbers plus {i}.",
            "difficulty": "introductory",
            "input_output": json.dumps(tests),
            "solutions": json.dumps([program, program.replace("# sum\n", ""), broken]),
        }


@pytest.fixture
def apps(tmp_path):
    file = tmp_path / "apps.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in apps_rows(12)))
    return f"jsonl:{file}"


def test_problems_that_are_read_get_bugs_on_their_own_tests(service, apps):
    service.manners = ("mutant", "not_run", "explained")
    hyper_params = parameters(service, apps, {"apps_solution_number": 0}, num_attempts=6)
    made, _ = build(hyper_params)
    for data in made.values():
        assert data["y"].tolist().count(0) == data["y"].tolist().count(1)
        assert data["y"].tolist().count(0) == data.notes["written"] > 0
        buggy = data["source"][data["y"] == 0].tolist()
        assert set(buggy) == {"bug_generator:writer"}
    questions = [set(data["question"].tolist()) for data in made.values()]
    assert not questions[0] & questions[1]
    few = parameters(service, apps, {"max_test_size": 2}, {"max_train_size": 4})
    service.bodies.clear()
    made, _ = build(few)
    assert made["train"].notes["wanted"] == 2, "only programs that are used are requested"
    assert made["test"].notes["wanted"] == 1


def test_data_without_tests_cannot_have_bugs_written(service, apps):
    section = {"run_own_tests": False}
    with pytest.raises(DataError, match=r"none of the .* programs .* has tests"):
        build(parameters(service, apps, section))


def test_where_nobody_can_be_asked_it_is_an_error(service):
    with pytest.raises(ParameterError, match=r"bug_generator\.model_name: got 'writer'"):
        build_code_validation_datasets(parameters(service))
    with pytest.raises(ParameterError, match=r"got temperature, but no model_name"):
        parameters(service, model_name="", base_url="embedded", num_attempts=5, temperature=1)
    with pytest.raises(ParameterError, match="api_key_name"):
        parameters(service, api_key_name="sk-1234567890abcdefghij")
    keyed = parameters(service, api_key_name="MISSING_KEY_OF_A_TEST")
    with pytest.raises(MissingKeyError, match="MISSING_KEY_OF_A_TEST"):
        build(keyed)


def test_a_plain_loop_has_them_written_too_by_the_service_of_our_own(service, monkeypatch):
    monkeypatch.setenv("RATCHET_LLM_URL", service.url)
    settings = ExperimentSettings(num_rollout_workers=4)
    hyper_params = parameters(service, base_url="embedded")
    instance = build_scenario_instance(hyper_params, settings, trainer_type="pure_text")
    assert "bug_generator:writer" in instance.datasets["train"]["source"].tolist()


def test_the_prompt_belongs_to_the_datas_key_where_it_is_used(service, monkeypatch, tmp_path):
    def key(hyper_params):
        return TextArmKeys("main", hyper_params).build_scenario().key

    on, off = parameters(service), parameters(service).replace({"bug_generator": {}})
    before = key(on), key(off)
    edited = tmp_path / "system.txt"
    edited.write_text("Break it.")
    monkeypatch.setitem(FILES, "bug_generator/system.txt", edited)
    assert key(on) != before[0]
    assert key(off) == before[1]
    assert key(parameters(service, api_key_name="ANOTHER_KEY")) == key(on), "no secret's name"
    assert key(parameters(service, num_attempts=9)) != key(on)


def test_a_plan_counts_the_calls(service):
    hyper_params = parameters(service, num_attempts=7)
    scenario = build_scenario("code_validation")
    (asked,) = scenario.asked_for_data(hyper_params)
    assert (asked.calls, asked.most_calls) == (4 + 1, 7 * 5)
    read = parameters(service, "hub:codeparrot/apps", {"max_test_size": 5})
    (asked,) = scenario.asked_for_data(read)
    assert asked.calls is None, "only the data determine the number of problems"
    limited = read.replace({"dataset_options.max_train_size": 10})
    assert scenario.asked_for_data(limited)[0].calls == 5 + 3


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("First\n```\ny = 1\n```\nthen\n```py\nx = 1\n```\ndone", "x = 1"),
        ("x = 1\n", "x = 1"),
        ("```python\nx = 1", "```python\nx = 1"),
        ("", None),
    ],
)
def test_the_last_block_is_the_program(reply, program):
    assert read_program(reply) == program
    assert plain_form("```python\nx = 1") is None
    assert plain_form("x = '\\d'  # a comment") == "x = '\\\\d'"
