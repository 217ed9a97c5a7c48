"""Group-relative advantages of responses, against manually computed values."""

from __future__ import annotations

from statistics import fmean, pstdev

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.algorithms.language.group_advantages import group_advantages
from ratchet.errors import DataError

scores = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=8)


def _advantages(score, groups, **options):
    return group_advantages(torch.tensor(score), list(groups), **options).advantage.tolist()


@given(score=scores, data=st.data())
@settings(max_examples=50, deadline=None)
def test_each_group_is_normalised_separately_with_the_population_deviation(score, data):
    groups = data.draw(st.lists(st.sampled_from("abc"), min_size=len(score), max_size=len(score)))
    expected = []
    for own, group in zip(score, groups, strict=True):
        others = [x for x, name in zip(score, groups, strict=True) if name == group]
        expected.append((own - fmean(others)) / (pstdev(others) + 1e-6))
    assert _advantages(score, groups) == pytest.approx(expected, abs=1e-6)
    centred = [a * 1 for a in _advantages(score, groups, scale="none")]
    for group in set(groups):
        own = [a for a, name in zip(centred, groups, strict=True) if name == group]
        assert sum(own) == pytest.approx(0, abs=1e-5)


@given(score=scores, shift=st.integers(-3, 3), data=st.data())
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_order_and_constant_offsets_do_not_matter(baseline, scale, score, shift, data):
    groups = data.draw(st.lists(st.sampled_from("ab"), min_size=len(score), max_size=len(score)))
    order = data.draw(st.permutations(range(len(score))))
    options = {"baseline": baseline, "scale": scale}
    given_ = _advantages(score, groups, **options)
    moved = _advantages(
        [score[row] + shift for row in order], [groups[row] for row in order], **options
    )
    assert moved == pytest.approx([given_[row] for row in order], abs=1e-4)


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["group", "batch", "none", "mean"])
def test_singleton_and_constant_groups_have_zero_advantages_and_are_counted(baseline, scale):
    score = torch.tensor([0.1, 0.1, 0.1, 7.0, 0.0, 1.0])
    found = group_advantages(score, list("aaabcc"), baseline=baseline, scale=scale)
    assert found.advantage[:4].tolist() == [0.0] * 4
    assert (found.advantage[4:] != 0).all()
    assert found.varies.tolist() == [False] * 4 + [True] * 2
    assert found.metrics["frac_constant_groups"] == pytest.approx(2 / 3)
    assert found.metrics["num_groups"] == 3
    assert found.metrics["std"] == pytest.approx(0.5 / 3)


@pytest.mark.parametrize("runs", [None, list("xxxyyyz")])
def test_equal_scores_have_zero_advantages_despite_rounding_of_the_mean(runs):
    score = torch.tensor([0.1] * 7, dtype=torch.float64)
    assert sum([0.1] * 3) / 3 != 0.1
    found = group_advantages(score, ["a"] * 7, runs=runs)
    assert found.advantage.tolist() == [0.0] * 7
    assert found.metrics["frac_constant_groups"] == 1


def test_scales():
    score, groups = [0.0, 2.0, 5.0, 9.0], "aabb"
    whole = pstdev(score)
    assert _advantages(score, groups) == pytest.approx([-1, 1, -1, 1], abs=1e-5)
    assert _advantages(score, groups, scale="none") == [-1, 1, -2, 2]
    by_batch = _advantages(score, groups, scale="batch")
    assert by_batch == pytest.approx([-1 / whole, 1 / whole, -2 / whole, 2 / whole], abs=1e-5)
    by_mean = _advantages(score, groups, scale="mean")
    assert by_mean == pytest.approx([-1, 1, -2 / 7, 2 / 7], abs=1e-5)
    with pytest.raises(DataError, match="a group with the mean score -1"):
        _advantages([-3.0, 1.0], "aa", scale="mean")


def test_leave_one_out_baseline_is_the_mean_of_the_others():
    found = _advantages([1.0, 2.0, 6.0, 4.0], "aaab", baseline="leave_one_out", scale="none")
    assert found == [1 - 4, 2 - 3.5, 6 - 1.5, 0]


def test_segments_of_a_run_are_one_attempt():
    # Run x has three segments with a mean score of 4; y has one that scores 0.
    score, groups, runs = [3.0, 4.0, 5.0, 0.0], list("aaaa"), list("xxxy")
    found = _advantages(score, groups, runs=runs, scale="none")
    assert found == [3 - 2, 4 - 2, 5 - 2, 0 - 2]
    assert _advantages(score, groups, runs=runs) == pytest.approx([0.5, 1, 1.5, -1], abs=1e-5)
    others = _advantages(score, groups, runs=runs, baseline="leave_one_out", scale="none")
    assert others == [3, 4, 5, -4]
    assert _advantages(score, groups, scale="none") == [0, 1, 2, -3]
    # A single attempt is a group of one, even with several segments.
    assert _advantages([1.0, 2.0], "aa", runs=["x", "x"]) == [0, 0]
    # Trajectories without a run's name are separate attempts; run names are scoped to a group.
    assert _advantages([1.0, 2.0], "aa", runs=["", ""], scale="none") == [-0.5, 0.5]
    assert _advantages([1.0, 3.0, 5.0, 9.0], "aabb", runs=list("xyxy"), scale="none") == [
        *(-1, 1, -2, 2)
    ]


def test_agent_averages_are_passed_in_and_returned():
    # A prover and a verifier with opposite rewards share a group.
    score, agents = torch.tensor([1.0, -1.0, 1.0, -1.0]), ["p", "v", "p", "v"]
    options = {"agents": agents, "baseline": "agent_average", "scale": "none", "decay": 0.75}
    first = group_advantages(score, list("aaaa"), **options)
    assert first.advantage.tolist() == [0, 0, 0, 0]
    assert first.agent_averages == {"p": 1.0, "v": -1.0}
    second = group_advantages(
        torch.tensor([0.0, 1.0]), list("ab"), agent_averages=first.agent_averages,
        **{**options, "agents": ["p", "v"]},
    )  # fmt: skip
    assert second.advantage.tolist() == [-1.0, 2.0]
    assert second.agent_averages == {"p": 0.75, "v": -0.75 + 0.25}
    # With the group's mean as baseline, one would always have A > 0 and the other A < 0.
    assert _advantages([1.0, -1.0], "aa") == pytest.approx([1, -1], abs=1e-5)
    with pytest.raises(ValueError, match="expected the agents' names"):
        _advantages([1.0], "a", baseline="agent_average")


@pytest.mark.parametrize("scale", ["group", "batch"])
def test_an_agents_advantage_is_not_divided_by_zero(scale):
    found = _advantages(
        [1.0, 1.0], "aa", agents=["p", "p"], baseline="agent_average", scale=scale,
        agent_averages={"p": 0.5},
    )  # fmt: skip
    assert found == [0, 0]


def test_an_agents_average_counts_runs_rather_than_segments():
    found = group_advantages(
        torch.tensor([2.0, 4.0, 9.0]), list("aaa"), runs=list("xxy"), agents=list("ppp"),
        baseline="agent_average", scale="none",
    )  # fmt: skip
    assert found.agent_averages["p"] == pytest.approx(6)
    assert found.advantage.tolist() == [-4, -2, 3]


def test_rows_that_do_not_count_have_no_effect():
    counts = torch.tensor([True, False, True, False])
    found = group_advantages(torch.tensor([1.0, 50.0, 3.0, 9.0]), list("aaab"), counts=counts)
    assert found.advantage.tolist() == pytest.approx([-1, 0, 1, 0], abs=1e-5)
    assert found.metrics["num_groups"] == 1
    assert found.varies.tolist() == [True, False, True, False]


@pytest.mark.parametrize("scale", ["group", "batch", "none", "mean"])
def test_an_empty_batch_has_no_advantages(scale):
    found = group_advantages(torch.zeros(0), [], scale=scale)
    assert found.advantage.shape == (0,)
    assert found.metrics == {"num_groups": 0.0, "frac_constant_groups": 0.0, "std": 0.0}


def test_too_few_names_are_refused_with_their_number():
    with pytest.raises(DataError, match="runs: got 1 for 2 scores"):
        group_advantages(torch.zeros(2), ["a", "a"], runs=["x"])
