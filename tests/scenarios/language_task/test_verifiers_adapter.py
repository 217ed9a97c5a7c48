"""Environments of packages of the verifiers kind, in the words of its versions."""

import textwrap
from importlib.util import find_spec

import pytest

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import DataError, ParameterError
from ratchet.protocols.registry import build_protocol_handler
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.language_task.rollout_generation import ModelPlayer, Sampling, play
from ratchet.scenarios.registry import build_scenario

SINGLE = """
class Parser:
    def parse_answer(self, completion):
        return completion[-1]["content"].strip()

class Rubric:
    def __init__(self, funcs, weights):
        self.funcs, self.weights, self.parser = funcs, weights, Parser()

class SingleTurnEnv:
    def __init__(self, rows, rubric):
        self.dataset, self.rubric, self.system_prompt = rows, rubric, "count"
        self.eval_dataset = None

async def right(completion, answer, parser, **kwargs):
    return float(parser.parse_answer(completion) == answer)

def short(completion):
    return 1.0 / len(completion[-1]["content"])

def words(state):
    return len(state["completion"])

def load_environment(size=40):
    rows = [{"question": f"{i}+1=", "answer": str(i + 1), "info": {"i": i}} for i in range(size)]
    return SingleTurnEnv(rows, Rubric([right, short, words], [1.0, 0.5, 0.0]))
"""

GAME = """
class Group:
    def __init__(self, *rubrics):
        self.rubrics = rubrics

class Rubric:
    def __init__(self, *funcs):
        self.reward_funcs, self.reward_weights = list(funcs), [2.0]

def solved(state, info):
    return float(state["found"] and state["secret"] == info["secret"])

class Guessing:
    max_turns = 4
    few_shot = None
    system_prompt = None
    def __init__(self):
        self.rubric = Group(Rubric(solved))
        self.dataset = [{"prompt": [{"role": "user", "content": f"guess {n}:"}],
                         "info": {"secret": str(n)}} for n in range(1, 30)]
        self.eval_dataset = [{"prompt": [{"role": "user", "content": "guess 0:"}],
                              "info": '{"secret": "2"}'}]
"""
OLD = (
    GAME
    + """
    async def setup_state(self, state, **kwargs):
        state["secret"], state["found"] = state["info"]["secret"], False
        return state
    async def is_completed(self, messages, state, **kwargs):
        return state["found"] or state["turn"] >= self.max_turns
    async def env_response(self, messages, state, **kwargs):
        state["found"] = messages[-1]["content"] == state["secret"]
        return [{"role": "user", "content": " yes" if state["found"] else " more:"}], state

def load_environment():
    return Guessing()
"""
)
NEW = (
    GAME
    + """
    async def setup_state(self, state):
        state["secret"], state["found"] = state["info"]["secret"], False
    async def is_completed(self, state):
        assert {"start_time"} <= state["timing"].keys(), "stop conditions of the package read it"
        return state["found"] or len(state["trajectory"]) >= self.max_turns
    async def env_response(self, messages, state):
        state["found"] = messages[-1]["content"] == state["secret"]
        return [{"role": "user", "content": " yes" if state["found"] else " more:"}]

def load_environment():
    return Guessing()
"""
)


@pytest.fixture
def made(tmp_path):
    def build(source, name="game.py", **more):
        (tmp_path / name).write_text(textwrap.dedent(source))
        hyper_params = HyperParameters(
            scenario="language_task",
            trainer="grpo",
            **{"dataset": f"verifiers:{name}", **more},
        )
        return build_scenario_instance(hyper_params, ExperimentSettings(), base_dir=tmp_path)

    return build


def played(instance, engine, tokenizer, dataset, places, group_size=1):
    environment = instance.environments[dataset]
    return play(
        [environment.dataset[place] for place in places],
        players={"agent": ModelPlayer(engine, tokenizer, Sampling(8))},
        rules=environment.rules,
        group_size=group_size,
        iteration=0,
        seed=1,
    )


def test_a_single_turn_is_scored_by_its_rubric(made, tokenizer, engine_saying):
    instance = made(SINGLE, language_task={"task_options": {"size": 30}, "chat": True})
    sides = {name: len(data) for name, data in instance.datasets.items()}
    assert sum(sides.values()) == 30
    assert all(sides.values())
    task = instance.train_dataset[0]
    assert [message.role for message in task.messages] == ["system", "user"]
    engine = engine_saying(lambda prompt, request: str(eval(prompt.removeprefix("count")[:-1])))
    found = played(instance, engine, tokenizer, "train", range(4))
    for trajectory in found.trajectories:
        size = trajectory.num_written - 1
        assert trajectory.scores == {"right": 1.0, "short": 1 / size}
        assert trajectory.reward == 1.0 + 0.5 / size
        assert trajectory.metrics["words"] == 1.0
    assert len(engine.asked) == 1


@pytest.mark.parametrize("source", [OLD, NEW], ids=["old", "new"])
def test_many_turns_and_a_rubric_that_reads_the_state(made, tokenizer, engine_saying, source):
    instance = made(source, language_task={"chat": True})
    assert [len(instance.datasets[name]) for name in ("train", "test")] == [29, 1]
    engine = engine_saying(lambda prompt, request: str(1 + prompt.count("more")))
    found = played(instance, engine, tokenizer, "train", [2, 8])
    first, second = found.trajectories
    assert (first.reward, first.metrics["num_turns"], first.finish_reason) == (2, 3, "environment")
    assert (second.reward, second.metrics["num_turns"], second.finish_reason) == (0, 4, "stop")
    assert len(engine.asked) == 4
    text = tokenizer.decode(first.tokens)
    assert text == "guess 3:1 more:2 more:3"


def test_an_evaluator_that_is_named_scores_in_the_rubrics_place(made, tokenizer, engine_saying):
    instance = made(SINGLE, language_task={"evaluator": "partial"})
    engine = engine_saying(lambda prompt, request: "x")
    found = played(instance, engine, tokenizer, "train", [0])
    assert found.trajectories[0].scores == {}
    assert "exact_match" in found.trajectories[0].metrics


def test_a_package_is_found_by_its_name_or_folder(tmp_path, monkeypatch):
    folder = tmp_path / "ratchet-test-game"
    folder.mkdir()
    (folder / "ratchet_test_game.py").write_text(SINGLE)
    scenario = build_scenario("language_task", tmp_path)

    def size(dataset):
        given = {"scenario": "language_task", "trainer": "grpo", "dataset": dataset}
        return sum(map(len, scenario.build_datasets(HyperParameters(**given)).values()))

    assert size("verifiers:ratchet-test-game") == 40
    monkeypatch.syspath_prepend(folder)
    scenario.base_dir = None
    assert size("verifiers:someone/ratchet-test-game") == 40
    code = scenario.own_data_code(
        HyperParameters(
            scenario="language_task", trainer="grpo", dataset="verifiers:ratchet-test-game"
        )
    )
    assert "load_environment" in [item.__name__ for item in code]


def test_what_counts_for_keys_is_found_without_making_the_environment(tmp_path):
    (tmp_path / "slow.py").write_text("def load_environment():\n    raise OSError('data are read')")
    hyper_params = HyperParameters(
        scenario="language_task", trainer="grpo", dataset="verifiers:slow.py"
    )
    scenario = build_scenario("language_task", tmp_path)
    handler = build_protocol_handler(hyper_params, base_dir=tmp_path)
    code = [item.__name__ for item in scenario.agent_code(hyper_params, handler)]
    assert code == ["VerifiersTasks", "load_environment", "VerifiersEnvironment"]
    assert scenario.test_sets(hyper_params) == ["test"]
    assert list(scenario.data_files(hyper_params)) == ["slow.py"]


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("x = 1", "no function load_environment"),
        ("class E:\n  dataset = []\ndef load_environment():\n  return E()", "no reward functions"),
        (
            SINGLE + "\ndef load_environment():\n  def all_of(completions):\n    return []\n"
            "  return SingleTurnEnv([], Rubric([all_of], [1.0]))",
            "all_of takes .*completions.*whole groups",
        ),
        (SINGLE.replace('"question"', '"query"'), "KeyError"),
    ],
)
def test_what_does_not_fit_is_told(made, source, what):
    with pytest.raises((ParameterError, DataError), match=f"(?s){what}"):
        made(source, "odd.py")


def test_a_missing_package_is_told_with_what_to_do():
    scenario = build_scenario("language_task")
    given = {"scenario": "language_task", "trainer": "grpo", "dataset": "verifiers:no-such-game"}
    with pytest.raises(
        ParameterError, match=r"importing 'no_such_game' failed.*Install the package"
    ):
        scenario.build_datasets(HyperParameters(**given))


REAL_SINGLE = """
import verifiers as vf
from datasets import Dataset

def right(completion, answer):
    return float(completion[-1]["content"].strip() == answer)

async def words(completion):
    return float(len(completion[-1]["content"].split()))

def load_environment(size=30):
    rows = [{"question": f"{i}+1=", "answer": str(i + 1)} for i in range(size)]
    rubric = vf.Rubric(funcs=[right, words], weights=[1.0, 0.0])
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), system_prompt="count", rubric=rubric)
"""
REAL_GAME = """
import verifiers as vf
from datasets import Dataset

def solved(state):
    return float(state["found"])

class Guessing(vf.MultiTurnEnv):
    async def setup_state(self, state):
        state["found"] = False
        return state

    @vf.stop
    async def was_found(self, state):
        return state["found"]

    async def env_response(self, messages, state):
        state["found"] = messages[-1]["content"] == state["answer"]
        return [{"role": "user", "content": " yes" if state["found"] else " more:"}]

def load_environment():
    def rows(numbers):
        prompts = [{"question": f"guess {n}:", "answer": str(n)} for n in numbers]
        return Dataset.from_list(prompts)
    return Guessing(dataset=rows(range(1, 30)), eval_dataset=rows([0]), max_turns=4,
                    rubric=vf.Rubric(funcs=[solved], weights=[2.0]))
"""
needs_verifiers = pytest.mark.skipif(
    find_spec("verifiers") is None or find_spec("verifiers.envs") is None,
    reason="needs verifiers 0.2 (`pip install 'ratchet-experiments[verifiers]'`), whose"
    " dependencies exclude versions of constraints.txt: use a separate environment",
)


@needs_verifiers
def test_the_packages_own_single_turn_is_played(made, tokenizer, engine_saying):
    instance = made(REAL_SINGLE, language_task={"chat": True})
    engine = engine_saying(lambda prompt, request: str(eval(prompt.removeprefix("count")[:-1])))
    found = played(instance, engine, tokenizer, "train", range(4))
    for trajectory in found.trajectories:
        assert trajectory.reward == trajectory.scores["right"] == 1.0
        assert trajectory.metrics["words"] == 1.0
    assert len(engine.asked) == 1


@needs_verifiers
def test_the_packages_own_turns_are_played(made, tokenizer, engine_saying):
    instance = made(REAL_GAME, language_task={"chat": True})
    assert [len(instance.datasets[name]) for name in ("train", "test")] == [29, 1]
    engine = engine_saying(lambda prompt, request: str(1 + prompt.count("more")))
    found = played(instance, engine, tokenizer, "train", [2, 8])
    first, second = found.trajectories
    assert (first.reward, first.metrics["num_turns"], first.finish_reason) == (2, 3, "environment")
    assert (second.reward, second.metrics["num_turns"]) == (0, 4)
