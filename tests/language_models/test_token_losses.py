"""Losses of tokens against plain loops, and what the interface refuses."""

from __future__ import annotations

import math

import pytest
import torch

from ratchet.errors import DataError, ParameterError
from ratchet.language_models.training_service import OptimizerSettings, TrainingExample
from ratchet.language_models.training_service.token_losses import Tokens, find_loss

NEW = [-1.0, -2.0, -0.5, -3.0, -1.5]
OLD = [-1.5, -1.2, -0.6, -3.0, -0.2]
ADVANTAGES = [1.0, -2.0, 0.5, -1.0, 3.0]
ROWS = [0, 0, 0, 2, 2]


def _by_hand(name, new, place):
    """A token's term; ``new`` may change in one place, for differences."""
    ratio, a = math.exp(new[place] - OLD[place]), ADVANTAGES[place]
    clipped = min(max(ratio, 0.8), 1.2)
    terms = {
        "cross_entropy": -new[place],
        "reinforce": -a * new[place],
        "importance_sampling": -a * ratio,
        "ppo": -min(a * ratio, a * clipped),
        "dro": -a * new[place] + 0.025 * (new[place] - OLD[place]) ** 2,
    }
    return terms[name]


def _tokens():
    log_probs = torch.tensor(NEW, dtype=torch.float64, requires_grad=True)
    old, advantages = (torch.tensor(values, dtype=torch.float64) for values in (OLD, ADVANTAGES))
    return Tokens(log_probs, old, advantages, torch.tensor(ROWS))


@pytest.mark.parametrize(
    "name", ["cross_entropy", "reinforce", "importance_sampling", "ppo", "dro"]
)
def test_terms_and_gradients_are_those_of_the_formula(name):
    tokens = _tokens()
    terms = find_loss(name, {})(tokens, {})
    assert terms.tolist() == pytest.approx([_by_hand(name, NEW, n) for n in range(5)])
    (gradient,) = torch.autograd.grad(terms.sum(), tokens.log_probs)
    for place, slope in enumerate(gradient.tolist()):
        ends = []
        for move in (1e-6, -1e-6):
            moved = [value + move * (n == place) for n, value in enumerate(NEW)]
            ends.append(_by_hand(name, moved, place))
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)


def test_cispo_has_no_gradient_through_its_ratio():
    tokens = _tokens()
    terms = find_loss("cispo", {})(tokens, {})
    (gradient,) = torch.autograd.grad(terms.sum(), tokens.log_probs)
    ratios = [min(max(math.exp(n - o), 0.8), 1.2) for n, o in zip(NEW, OLD, strict=True)]
    expected = [-a * ratio for a, ratio in zip(ADVANTAGES, ratios, strict=True)]
    assert gradient.tolist() == pytest.approx(expected)


def test_gspo_has_one_ratio_for_an_example():
    tokens, wide = _tokens(), {"clip_low_threshold": 0.0, "clip_high_threshold": 9.0}
    terms = find_loss("gspo", wide)(tokens, wide)
    apart = [n - o for n, o in zip(NEW, OLD, strict=True)]
    first, second = math.exp(sum(apart[:3]) / 3), math.exp(sum(apart[3:]) / 2)
    ratios = [first] * 3 + [second] * 2
    assert terms.tolist() == pytest.approx(
        [-a * ratio for a, ratio in zip(ADVANTAGES, ratios, strict=True)]
    )
    (gradient,) = torch.autograd.grad(terms.sum(), tokens.log_probs)
    assert gradient.tolist() == pytest.approx(terms.tolist())
    narrow = find_loss("gspo", {})(tokens, {})
    assert first < 0.9997
    assert narrow.tolist()[:2] == pytest.approx([-first, 2 * 0.9997])


def test_bounds_are_read_and_others_refused():
    tokens, config = _tokens(), {"clip_high_threshold": 1.5}
    terms = find_loss("ppo", config)(tokens, config)
    assert terms.tolist()[0] == pytest.approx(-1.5)
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
def test_examples_are_looked_at(more, complaint):
    with pytest.raises(DataError, match=complaint):
        TrainingExample(**{"tokens": (1, 2), "loss_mask": (0, 1), **more})


@pytest.mark.parametrize("more", [{"learning_rate": -1.0}, {"beta2": 1.0}, {"eps": math.inf}])
def test_figures_of_the_optimizer_are_looked_at(more):
    with pytest.raises(ParameterError, match=next(iter(more))):
        OptimizerSettings(**more)
