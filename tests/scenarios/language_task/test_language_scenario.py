"""The scenario: its parts put together, what counts for keys, and that an experiment's play."""

import json
from types import SimpleNamespace

import pytest
from pydantic import Field

from flows.planning.plan import plan
from flows.runs.resolve import resolve_file
from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import ParameterError
from ratchet.parameters.base import SECTIONS, Section, SubParameters
from ratchet.protocols.registry import build_protocol_handler
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.language_task.environments.base import SingleTurn
from ratchet.scenarios.language_task.evaluators import ExactMatch, PartialMatch
from ratchet.scenarios.language_task.instance import SampledModel
from ratchet.scenarios.registry import build_scenario

GIVEN = {"scenario": "language_task", "dataset": "reverse", "trainer": "grpo"}


class Failures(SubParameters):
    policy: str = "fail_fast"
    retries: int = 3
    at_least: int = 2


class Language(SubParameters):
    """The parameters of the trainers' section that these tests read."""

    group_size: int = 8
    max_sequence_length: int | None = None
    test_temperature: float = 0.0
    samples_per_test: int = 1
    failures: Failures = Field(default_factory=Failures)


@pytest.fixture(autouse=True)
def _section(monkeypatch):
    HyperParameters(**GIVEN)
    if "language" not in SECTIONS:
        monkeypatch.setitem(SECTIONS, "language", Section("language", Language))


def instance(base_dir=None, **more):
    small = {"num_train": 6, "num_test": 3}
    more["language_task"] = {**small, **more.get("language_task", {})}
    hyper_params = HyperParameters(**{**GIVEN, **more})
    return build_scenario_instance(hyper_params, ExperimentSettings(), base_dir=base_dir)


def test_there_is_one_agent_and_the_protocol_is_the_environments():
    made = instance()
    assert made.agent_names == ("agent",)
    assert made.hyper_params.interaction_protocol == "environment"
    assert made.protocol_handler.verifier_names == made.protocol_handler.prover_names == ()
    assert made.protocol_handler.can_be_active_mask.tolist() == [[[True]]]
    assert made.agents["agent"].parameters.model == "small"


def test_environment_and_evaluator_are_as_the_experiment_says():
    plain = instance().train_environment.rules
    other = instance(language_task={"evaluator": "partial", "max_turns": 3}).test_environment.rules
    assert type(plain.environment) is type(other.environment) is SingleTurn
    assert type(plain.evaluator) is ExactMatch
    assert type(other.evaluator) is PartialMatch
    assert other.max_turns == 3
    assert not plain.system_prompt
    chat = instance(language_task={"chat": True}).train_environment.rules
    assert "backwards" in chat.system_prompt
    own = instance(language_task={"chat": True, "system_prompt": "go"}).train_environment.rules
    assert own.system_prompt == "go"


def test_an_environment_gets_what_stands_beside_its_name():
    with pytest.raises(ParameterError, match="single_turn does not accept"):
        instance(language_task={"environment": {"name": "single_turn", "size": 3}})


def test_its_characters_write_all_tasks(tokenizer):
    assert instance().characters == "=abcdefgh"
    words = instance(language_task={"chat": True, "system_prompt": "Z!"}).characters
    assert set(words) == set("=abcdefghZ!")


def test_its_characters_are_those_of_a_files_tasks(tmp_path):
    rows = [{"prompt": f"p{i}", "answer": "xy"} for i in range(30)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert set(instance(tmp_path, dataset="t.jsonl").characters) <= set("p0123456789xy")


def test_demonstrations_are_as_the_model_would_read_and_write_them(tokenizer):
    made = instance()
    shown = made.demonstrations(tokenizer)
    assert len(shown) == len(made.train_dataset)
    task = made.train_dataset[0]
    assert list(shown[0].prompt) == tokenizer.encode(task.prompt)
    assert list(shown[0].answer) == [*tokenizer.encode(task.answer), tokenizer.end_ids[0]]


def test_an_experiment_is_played_as_its_sections_say(tokenizer, engine_saying):
    made = instance(
        language={"group_size": 3, "test_temperature": 0.5, "samples_per_test": 2},
        agents={"agent": {"temperature": 0.7, "max_tokens": 9}},
    )
    engine = engine_saying(lambda prompt, request: prompt.rstrip("=")[::-1])
    models = {"agent": SampledModel(engine, tokenizer)}
    found = made.play("train", [4, 1], models, iteration=2, model_version=5)
    ids = [made.train_dataset[place].task_id for place in (4, 1)]
    assert [t.task_id for t in found.trajectories] == [ids[0]] * 3 + [ids[1]] * 3
    assert {(r.temperature, r.max_tokens) for r in engine.asked[0]} == {(0.7, 9)}
    assert {t.reward for t in found.trajectories} == {1.0}
    assert {t.model_version for t in found.trajectories} == {5}
    tested = made.play("test", [0], models, iteration=0, is_validation=True)
    assert [t.is_validation for t in tested.trajectories] == [True, True]
    assert {r.temperature for r in engine.asked[1]} == {0.5}


CUSTOM = """
from ratchet.scenarios.language_task.sources.reverse import Reverse
class Mine(Reverse):
    pass
def score(task, completion, messages):
    return 1.0
"""


def code(base_dir, **more):
    hyper_params = HyperParameters(**{**GIVEN, **more})
    scenario = build_scenario("language_task", base_dir)
    handler = build_protocol_handler(hyper_params, base_dir=base_dir)
    played = scenario.agent_code(hyper_params, handler)
    data = (*scenario.data_code(), *scenario.own_data_code(hyper_params))
    return {item.__name__ for item in data}, {item.__name__ for item in played}


def test_the_code_that_counts_is_what_is_used(tmp_path):
    (tmp_path / "mine.py").write_text(CUSTOM)
    data, played = code(tmp_path)
    assert {"Reverse"} <= data
    assert played == {"Reverse", "SingleTurn", "ExactMatch"}
    data, played = code(
        tmp_path, dataset="mine.py:Mine", language_task={"evaluator": "mine.py:score"}
    )
    assert "Mine" in data
    assert played == {"Mine", "SingleTurn", "score"}


def test_where_files_of_tasks_lie_is_in_no_key(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    scenario = build_scenario("language_task", tmp_path)
    hyper_params = HyperParameters(**{**GIVEN, "dataset": f"{tmp_path}/t.jsonl"})
    assert list(scenario.data_files(hyper_params)) == ["t.jsonl"]
    assert scenario.without_places(hyper_params.to_dict())["dataset"] == "t.jsonl"
    assert scenario.without_places({"dataset": "reverse"}) == {"dataset": "reverse"}


@pytest.mark.parametrize(
    ("section", "what"),
    [
        ({"reverse": {"num_symbols": 63}}, "num_symbols"),
        ({"arithmetic": {"operations": []}}, "operations"),
        ({"max_turns": 0}, "max_turns"),
        ({"evaluator": 3}, "evaluator"),
    ],
)
def test_parameters_out_of_range_are_refused(section, what):
    with pytest.raises(ParameterError, match=what):
        HyperParameters(**GIVEN, language_task=section)


def test_a_small_model_that_cannot_be_is_refused():
    with pytest.raises(ParameterError, match=r"agents\.agent\.small_model.*multiple of 6"):
        HyperParameters(**GIVEN, agents={"agent": {"small_model": {"d_model": 64, "heads": 3}}})


def test_another_protocol_is_refused():
    scenario = build_scenario("language_task")
    hyper_params = HyperParameters(**GIVEN)
    with pytest.raises(ParameterError, match="expected 'environment'"):
        scenario.build_instance(
            hyper_params, ExperimentSettings(), SimpleNamespace(agent_names=()), {}, "rl"
        )


SPEAKS = """
from ratchet.scenarios.language_task.environments.base import LanguageEnvironment, PlainEpisode

class Speaks(LanguageEnvironment):
    def __init__(self, words):
        self.words = words

    def begin(self, task, seed):
        return PlainEpisode(task)

    def characters(self):
        return self.words
"""


@pytest.mark.slow
def test_a_small_model_that_is_made_for_another_environment_is_another(tmp_path):
    (tmp_path / "mine.py").write_text(SPEAKS)
    file = tmp_path / "mine.yaml"
    file.write_text("scenario: language_task\ntrainer: grpo\ndataset: reverse\n")

    def first_state(words):
        environment = ["environment.name=mine.py:Speaks", f"environment.words={words}"]
        given = [f"language_task.{each}" for each in environment]
        stages = plan(resolve_file(str(file), given))
        return next(stage.key for stage in stages if stage.stage == "initial_state")

    assert first_state("yes") != first_state("no!")
