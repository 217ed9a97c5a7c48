"""The training service's losses by name, and the values that its interface refuses."""

from __future__ import annotations

import math

import pytest
import torch

from ratchet.algorithms.language import losses
from ratchet.errors import DataError, ParameterError
from ratchet.language_models.training_service import OptimizerSettings, TrainingExample
from ratchet.service.training_sessions.state import find_loss

LOG_PROBS = torch.tensor([[-1.0, -2.0, -0.5], [-3.0, -1.5, 0.0]], dtype=torch.float64)
SAMPLED = torch.tensor([[-1.5, -1.2, -0.6], [-3.0, -0.2, 0.0]], dtype=torch.float64)
ADVANTAGES = torch.tensor([[1.0, -2.0, 0.5], [-1.0, 3.0, 9.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
GIVEN = (LOG_PROBS, SAMPLED, ADVANTAGES, MASK)


@pytest.mark.parametrize(
    ("name", "config", "formula"),
    [
        ("cross_entropy", {}, losses.cross_entropy(LOG_PROBS, MASK)),
        ("reinforce", {}, losses.reinforce(LOG_PROBS, ADVANTAGES, MASK)),
        ("importance_sampling", {}, losses.importance_sampling(*GIVEN)),
        ("ppo", {}, losses.ppo_clip(*GIVEN, clip_low=0.2, clip_high=0.2)),
        ("ppo", {"clip_low_threshold": 0.5}, losses.ppo_clip(*GIVEN, clip_low=0.5)),
        ("ppo", {"clip_high_threshold": 1.5}, losses.ppo_clip(*GIVEN, clip_high=0.5)),
        ("gspo", {}, losses.gspo(*GIVEN, clip_low=3e-4, clip_high=4e-4)),
        ("gspo", {"clip_low_threshold": 0.0}, losses.gspo(*GIVEN, clip_low=1.0)),
        ("cispo", {}, losses.cispo(*GIVEN, min_ratio=0.8, max_ratio=1.2)),
        ("cispo", {"clip_high_threshold": 5.0}, losses.cispo(*GIVEN, min_ratio=0.8)),
        ("dro", {}, losses.dro(*GIVEN, beta=0.05)),
        ("dro", {"beta": 0.5}, losses.dro(*GIVEN, beta=0.5)),
    ],
)
def test_names_and_parameters_of_the_service_select_formulas(name, config, formula):
    torch.testing.assert_close(find_loss(name, config)(*GIVEN).loss, formula.loss)


def test_unknown_losses_and_parameters_are_refused():
    with pytest.raises(ParameterError, match="loss_config of reinforce: got 'beta', expected none"):
        find_loss("reinforce", {"beta": 1.0})
    with pytest.raises(ParameterError, match="Did you mean 'cispo'"):
        find_loss("cisp", {})


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"loss_mask": (1, 1)}, "0 for the first"),
        ({"loss_mask": (0, 2)}, "expected 0 or 1"),
        ({"weights": (1.0,)}, "got 1 values for 2 tokens"),
        ({"advantages": (0.0, math.nan)}, "not finite"),
    ],
)
def test_invalid_examples_are_refused(more, complaint):
    with pytest.raises(DataError, match=complaint):
        TrainingExample(**{"tokens": (1, 2), "loss_mask": (0, 1), **more})


@pytest.mark.parametrize("more", [{"learning_rate": -1.0}, {"beta2": 1.0}, {"eps": math.inf}])
def test_invalid_optimizer_settings_are_refused(more):
    with pytest.raises(ParameterError, match=next(iter(more))):
        OptimizerSettings(**more)
