"""Trainers are found by name, in a file, and without importing the others."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import trainers
from ratchet.errors import ParameterError, UnknownNameError
from trainers.base import Trainer
from trainers.registry import TRAINERS, register_trainer, trainer_class

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_built_in_trainers_are_listed_and_found(tiny):
    assert {"vanilla_ppo", "solo_agent"} <= set(TRAINERS.names())
    assert trainer_class(tiny.parameters()).__name__ == "VanillaPpoTrainer"
    assert trainer_class(tiny.parameters(trainer="solo_agent")).trainer_type == "solo_agent"


def test_listing_trainers_imports_neither_torch_nor_any_trainer():
    code = (
        "import sys; from trainers.registry import TRAINERS; TRAINERS.names();"
        "assert 'torch' not in sys.modules;"
        "assert not any(m.startswith('trainers.tensordict') for m in sys.modules)"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_an_unknown_trainer_gets_the_nearest_name(tiny):
    with pytest.raises(UnknownNameError, match=r"'vanila_ppo'\. Did you mean 'vanilla_ppo'"):
        trainer_class(tiny.parameters(trainer="vanila_ppo"))


@pytest.mark.parametrize(
    "reference",
    [
        "custom_trainer.py:HillClimbingTrainer",
        {"module_path": "custom_trainer.py", "class_name": "HillClimbingTrainer"},
    ],
)
def test_a_trainer_in_a_file_is_found_from_the_experiments_folder(tiny, reference):
    found = trainer_class(tiny.parameters(trainer=reference), EXAMPLES)
    assert found.__name__ == "HillClimbingTrainer"
    assert issubclass(found, trainers.TensorDictTrainer)


def test_a_class_that_is_no_trainer_is_refused(tiny):
    reference = {"module_path": "custom_trainer.py", "class_name": "AdvantageActorCriticLoss"}
    with pytest.raises(ParameterError, match="expected a subclass of"):
        trainer_class(tiny.parameters(trainer=reference), EXAMPLES)


def test_a_name_belongs_to_one_class():
    class Mine(Trainer):
        def train(self):
            pass

    class Yours(Mine):
        pass

    register_trainer("one_of_mine")(Mine)
    register_trainer("one_of_mine")(Mine)
    with pytest.raises(ParameterError, match="is taken by"):
        register_trainer("one_of_mine")(Yours)


def test_every_public_name_can_be_imported():
    for name in trainers.__all__:
        assert getattr(trainers, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Trainr'"):
        _ = trainers.Trainr


def test_attributes_that_became_traits_still_set_them():
    with pytest.warns(DeprecationWarning, match="takes_sequences is deprecated: use traits ="):

        class Mine(trainers.TensorDictRlTrainer):
            takes_sequences = True

            @classmethod
            def loads_agents(cls):
                return False

    assert Mine.traits == replace(
        trainers.TensorDictRlTrainer.traits, takes_sequences=True, loads_agents=False
    )
