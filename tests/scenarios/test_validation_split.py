"""The validation split: held out of training, apart from the test set, the same for equal data."""

from __future__ import annotations

import numpy as np
import pytest

from ratchet.errors import ParameterError
from ratchet.parameters import HyperParameters
from ratchet.parameters.key_inputs import data_parameters
from ratchet.rollouts import NestedArrayDict
from ratchet.rollouts.dataset import NestedArrayDictDataset
from ratchet.scenarios.graph_isomorphism.wl import class_keys
from ratchet.scenarios.registry import build_scenario
from ratchet.scenarios.validation_split import expected_test_sets, split_datasets

SCENARIOS = {
    "graph_isomorphism": {
        "trainer": "vanilla_ppo",
        "dataset": "er200",
        "graph_isomorphism": {
            "graph_sizes": (8, 9),
            "dataset_seed": 1,
            "extra_test_sets": {"easy": {"num_pairs": 20}},
        },
    },
    "image_classification": {
        "trainer": "vanilla_ppo",
        "dataset": "digits",
        "image_classification": {"dataset_seed": 1},
    },
    "gymnasium": {"trainer": "vanilla_ppo", "dataset": "CartPole-v1"},
    "code_validation": {
        "trainer": "pure_text_ei",
        "dataset": "generated",
        "code_validation": {"num_train": 30, "num_test": 10, "dataset_seed": 1},
    },
}


def build(name, seed=3, **validation):
    given = HyperParameters(scenario=name, seed=seed, validation=validation, **SCENARIOS[name])
    scenario = build_scenario(name)
    made = split_datasets(scenario, given)
    assert list(made) == ["train", *expected_test_sets(scenario, given)]
    return made


def rows(dataset):
    """Return one comparable value per datapoint."""
    columns = [np.asarray(dataset[name]).reshape(len(dataset), -1) for name in dataset.fields]
    return [repr([column[i].tolist() for column in columns]) for i in range(len(dataset))]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_search_sees_the_training_data_of_the_study_and_none_of_its_test_data(name):
    before = build(name)
    study, search = build(name, size=0.2), build(name, size=0.2, replaces_test=True)
    assert search["train"].hash == study["train"].hash != before["train"].hash
    assert study["test"].hash == before["test"].hash
    held_out = rows(search["test"])
    assert not set(held_out) & (set(rows(study["train"])) | set(rows(study["test"])))
    total = len(before["train"]) + len(before["test"])
    assert len(held_out) == pytest.approx(0.2 * total, abs=2)


def test_no_graph_class_is_on_two_sides():
    study = build("graph_isomorphism", size=0.2)
    search = build("graph_isomorphism", size=0.2, replaces_test=True)

    def classes(dataset):
        return {
            int(key)
            for pair, n in zip(dataset["adjacency"].numpy(), dataset["num_nodes"], strict=True)
            for key in class_keys(pair[:, :n, :n], salt=0)
        }

    sides = [classes(data) for data in (study["train"], study["test"], search["test"])]
    assert sum(map(len, sides)) == len(set.union(*sides))


def test_datapoints_of_one_group_stay_together():
    questions = [f"question {i // 3}" for i in range(60)]
    data = NestedArrayDictDataset(NestedArrayDict({"question": questions}, len(questions)))
    scenario = build_scenario("code_validation")
    assert scenario.group_field == "question"
    scenario.make_datasets = lambda *_: {"train": data, "test": data}
    given = HyperParameters(
        scenario="code_validation",
        validation={"size": 0.2, "replaces_test": True},
        **SCENARIOS["code_validation"],
    )
    made = split_datasets(scenario, given)
    train, held_out = (set(made[side]["question"].tolist()) for side in ("train", "test"))
    assert len(held_out) == 8
    assert not train & held_out


def test_the_split_follows_the_dataset_seed_and_otherwise_the_seed():
    def both(name, seed):
        return build(name, seed=seed, size=0.2, replaces_test=True)["test"].hash

    assert both("image_classification", 3) == both("image_classification", 4)
    assert both("gymnasium", 3) != both("gymnasium", 4)


def test_keys_contain_the_section_only_if_there_is_a_split():
    def read(**validation):
        given = HyperParameters(
            scenario="gymnasium", validation=validation, **SCENARIOS["gymnasium"]
        )
        return data_parameters(given)

    assert "validation" not in read()
    assert read(size=0.1)["validation"] == {"size": 0.1, "replaces_test": False}


def test_bad_sizes_are_refused():
    with pytest.raises(ParameterError, match=r"replaces_test: got true, but there is no valid"):
        build("gymnasium", replaces_test=True)
    with pytest.raises(ParameterError, match=r"validation\.size: holds out .* none to train on"):
        build("code_validation", size=0.9)
    with pytest.raises(ParameterError, match=r"test_size: 0.2 of 200 pairs, with validation.size"):
        build("graph_isomorphism", size=0.8)


def test_language_tasks_size_their_split_themselves():
    given = HyperParameters(
        scenario="language_task",
        trainer="grpo",
        dataset="reverse",
        language_task={"num_train": 20, "num_validation": 7, "num_test": 5},
        validation={"replaces_test": True},
    )
    made = split_datasets(build_scenario("language_task"), given)
    assert made["test"].hash == made["validation"].hash
    assert {name: len(data) for name, data in made.items()} == {
        "train": 20,
        "validation": 7,
        "test": 7,
    }
    wrong = HyperParameters(**{**given.to_dict(), "validation": {"size": 0.1}})
    with pytest.raises(ParameterError, match=r"Set language_task\.num_validation"):
        split_datasets(build_scenario("language_task"), wrong)
