"""The guide for users of nip: every row of its tables is correct, and none is missing."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ratchet import ExperimentSettings, HyperParameters
from ratchet.agents.parts import Agent
from ratchet.errors import RenamedAttributes
from ratchet.parameters.compatibility.converters import upgrade_parameters
from ratchet.rollouts import NestedArrayDict
from ratchet.rollouts.dataset import NestedArrayDictDataset
from ratchet.scenarios import ScenarioInstance
from ratchet.scenarios.dataset import TensorDictDataset
from ratchet.scenarios.pure_text.agents.shared_model_group import PureTextSharedModelGroup
from ratchet.scenarios.pure_text.environment import PureTextEnvironment
from ratchet.scenarios.tensor_environment import TensorEnvironment
from trainers import (
    IterationContext,
    PureTextRlTrainer,
    TensorDictRlTrainer,
    TensorDictTrainer,
    Trainer,
)

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "coming_from_nip.md"
CLASSES = {
    cls.__name__: cls
    for cls in (
        *(Agent, ExperimentSettings, HyperParameters, IterationContext, NestedArrayDict),
        *(NestedArrayDictDataset, PureTextEnvironment, PureTextRlTrainer, PureTextSharedModelGroup),
        *(ScenarioInstance, TensorDictDataset, TensorDictRlTrainer, TensorDictTrainer),
        *(TensorEnvironment, Trainer),
    )
}


def rows(heading):
    """The cells of the table below a heading, without code marks around a whole cell."""
    section = GUIDE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]


def code(cell):
    return cell.removeprefix("`").removesuffix("`")


@pytest.mark.parametrize(("there", "here"), rows("Imports"))
def test_what_is_imported_is_there(there, here):
    module, _, name = code(here).rpartition(".")
    assert getattr(importlib.import_module(module), name)
    assert there.startswith("`nip.")


@pytest.mark.parametrize(("cls", "there", "here"), rows("Names of classes' attributes"))
def test_a_name_works_or_an_error_says_what_it_is_called(cls, there, here):
    kind, name = CLASSES[code(cls)], code(there)
    tables = [vars(each).get("renamed_attributes", {}) for each in kind.__mro__]
    hint = next((table[name] for table in tables if name in table), None)
    if hint is None:
        fields = [getattr(kind, key, {}) for key in ("model_fields", "__dataclass_fields__")]
        known = {*dir(kind)}.union(*fields)
        assert name in known, "neither works, nor is there an error"
        return
    assert not here.startswith("the same")
    concrete = type(kind)(kind.__name__, (kind,), {})
    concrete.__abstractmethods__ = frozenset()
    with pytest.raises(AttributeError, match=f"has no '{name}' here: ") as caught:
        getattr(object.__new__(concrete), name)
    assert hint in str(caught.value)
    assert not hasattr(kind, name), "the old name hides nothing"


def test_what_an_instance_of_networks_points_to_is_there(tiny):
    instance = tiny.scenario(tiny.parameters())
    with pytest.raises(AttributeError) as caught:
        _ = instance.combined_whole
    _, others = str(caught.value).split("; in all others ")
    assert "scenario_instance.combined_agents" in others
    assert instance.combined_agents is not None
    assert ".whole" not in others, "no agent has one there"


def test_every_name_that_has_an_error_is_in_the_guide():
    def subclasses(cls):
        return {cls}.union(*(subclasses(each) for each in cls.__subclasses__()))

    told = {(code(cls), code(there)) for cls, there, _ in rows("Names of classes' attributes")}
    found = subclasses(RenamedAttributes) | subclasses(Trainer)
    mine = [cls for cls in found if vars(cls).get("renamed_attributes")]
    given = {(cls.__name__, name) for cls in mine for name in vars(cls)["renamed_attributes"]}
    aliases = {"TextTrainerComponents": "PureTextRlTrainer"}
    assert {(aliases.get(cls, cls), name) for cls, name in given} <= told


@pytest.mark.parametrize(("there", "here"), rows("Parameters"))
def test_parameters_are_upgraded(there, here):
    def nested(cell):
        path, _, value = code(cell).partition(": ")
        data = yaml.safe_load(value)
        for name in reversed(path.split(".")):
            data = {name: data}
        return data

    converted, changes = upgrade_parameters(nested(there))
    assert converted == nested(here)
    assert changes
    combinations = [("graph_isomorphism", "vanilla_ppo"), ("code_validation", "pure_text_ei")]
    scenario, trainer = combinations["supervisor" in here]
    common = {"scenario": scenario, "trainer": trainer, "dataset": "generated"}
    HyperParameters.from_dict({**common, **nested(here)})


# -- what works -----------------------------------------------------------------------------


def test_an_environment_is_reset_without_arguments(tiny):
    hyper_params = tiny.parameters()
    environment, other = (tiny.scenario(hyper_params).train_environment for _ in range(2))
    first = environment.reset()
    assert first.batch_size == environment.batch_size
    assert (first == other.reset()).all(), "the order depends on the seed alone"
    second = environment.reset()
    ids = [*first["datapoint_id"].tolist(), *second["datapoint_id"].tolist()]
    assert len(set(ids)) == min(len(ids), len(environment.dataset))
    assert environment.reward_key == ("agents", "reward")
    assert ("agents", "message") in environment.action_keys
    assert ("agents", "decision") in environment.action_keys
    agents = tiny.scenario(hyper_params).combined_agents
    acted = agents.act(first)
    assert all(acted.get(key, None) is not None for key in environment.action_keys)
    assert environment.step(acted).get(environment.reward_key).shape[0] == environment.num_envs


def test_datapoints_are_taken_by_their_indices(tiny):
    dataset = tiny.dataset(10, 1)
    assert dataset[[3, 1]]["y"].tolist() == dataset["y"][[3, 1]].tolist()
    assert dataset[2:4].batch_size == (2,)
    text = NestedArrayDictDataset(NestedArrayDict({"y": [0, 1, 0], "a": {"b": [5, 6, 7]}}, 3))
    assert text[[2, 0]]["a", "b"].tolist() == [7, 5]
    assert text[1]["a", "b"] == 6
    assert text["a", "b"].tolist() == [5, 6, 7]


def test_parameters_are_got_by_a_dotted_path(tiny):
    hyper_params = tiny.parameters()
    assert hyper_params.get("rl.num_iterations") == 3
    assert hyper_params.get("agents.prover.d_gnn") == 4
    assert hyper_params.get("ppo").clip_epsilon == 0.2
    with pytest.raises(ValueError, match=r"rl\.num_iteration: .*Did you mean 'num_iterations'"):
        hyper_params.get("rl.num_iteration")
    with pytest.raises(ValueError, match="there is no parameter 'to_dict'"):
        hyper_params.get("to_dict")


def test_leaf_keys_of_nested_arrays():
    data = NestedArrayDict.from_arrays_and_scalars([[1, 2], [3, 4]], ["x", ("a", "b")], (2,))
    assert data.leaf_keys() == [("x",), ("a", "b")]
    assert data.key_is_leaf("x")
    assert data.key_is_leaf(("a", "b"))
    assert not data.key_is_leaf("a")
    with pytest.raises(KeyError):
        data.key_is_leaf("c")


def test_a_train_of_the_earlier_form_does_what_ours_does(tiny):
    from trainers.tensordict.vanilla_ppo import VanillaPpoTrainer

    class EarlierForm(VanillaPpoTrainer):
        def _initialise_state(self):
            super()._initialise_state()
            self.made = True

        def train(self):
            if self.hyper_params.pretrain_agents:
                self._pretrain_agents()
            self._build_operators()
            self._train_and_test()

        def _get_log_stats(self, rollouts, mean_loss_vals=None, *, train=True):
            agents = rollouts["agents"]
            assert (agents["sample_log_prob"] == agents["log_prob"]).all()
            return super()._get_log_stats(rollouts, mean_loss_vals, train=train)

    hyper_params = tiny.parameters(pretrain_agents=True)
    whole = tiny.trainer(hyper_params)
    whole.train()
    earlier = EarlierForm(hyper_params, tiny.scenario(hyper_params), ExperimentSettings())
    earlier.train()
    assert earlier.made
    assert replace(earlier.state, attributes={}) == whole.state
    assert earlier.history == whole.history
    stored = set(earlier.sample_rollouts(3)["agents"].keys())
    assert "sample_log_prob" not in stored


def test_an_error_inside_a_property_is_not_hidden():
    class Broken(RenamedAttributes):
        @property
        def value(self):
            return self.nothing_of_the_kind

    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = Broken().value
