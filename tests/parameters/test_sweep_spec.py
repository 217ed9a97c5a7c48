"""Sweep specifications: errors contain the path; members depend only on the specification."""

from __future__ import annotations

import pytest

from flows.sweeps.points import corner_points, sweep_points, with_assignments
from ratchet.errors import ParameterError, RatchetError
from ratchet.experiment_files.loading import load_experiment
from ratchet.parameters.sweeps import Choices, GridSweep, Integers, LogUniform, read_sweep_spec

LR = {"kind": "log_uniform", "low": 1e-5, "high": 0.1}
DRAWN = {"rl": {"lr": LR}, "rl.num_epochs": {"kind": "integers", "low": 1, "high": 8}}

GOLDEN = {
    "random": [
        {"rl.lr": 0.000877666, "rl.num_epochs": 6},
        {"rl.lr": 1.09115e-05, "rl.num_epochs": 7},
    ],
    "sobol": [
        {"rl.lr": 0.00319034, "rl.num_epochs": 2},
        {"rl.lr": 1.76191e-05, "rl.num_epochs": 6},
    ],
}


def spec(kind, **given):
    needed = {"random": {"num_samples": 5}, "sobol": {"num_samples": 5}}.get(kind, {})
    return read_sweep_spec({"kind": kind, "parameters": DRAWN, **needed, **given})


def test_points_of_a_grid_and_of_values_side_by_side():
    assert sweep_points(spec("grid", parameters={"seed": "0..1", "a.b": ["x", "y"]})) == [
        {"seed": 0, "a.b": "x"},
        {"seed": 0, "a.b": "y"},
        {"seed": 1, "a.b": "x"},
        {"seed": 1, "a.b": "y"},
    ]
    beside = {"parameters": {"a": [1, 2], "b": [3, 4]}, "for_each": {"seed": [0, 1]}}
    assert sweep_points(spec("zip", **beside)) == [
        {"a": 1, "b": 3, "seed": 0},
        {"a": 1, "b": 3, "seed": 1},
        {"a": 2, "b": 4, "seed": 0},
        {"a": 2, "b": 4, "seed": 1},
    ]


def test_samples_are_these_on_every_machine():
    """Golden values: different values would be different members, without cached stages."""
    assert sweep_points(spec("random", num_samples=2)) == GOLDEN["random"]
    assert sweep_points(spec("sobol", num_samples=2)) == GOLDEN["sobol"]
    assert sweep_points(spec("sobol", num_samples=2, scramble=False)) == [
        {"rl.lr": 1e-05, "rl.num_epochs": 1},
        {"rl.lr": 0.001, "rl.num_epochs": 5},
    ]


@pytest.mark.parametrize("kind", ["random", "sobol"])
def test_more_samples_begin_with_the_same_and_another_seed_has_others(kind):
    few = sweep_points(spec(kind, num_samples=5))
    many = sweep_points(spec(kind, num_samples=21))
    assert many[:5] == few
    assert len(many) == 21
    assert not {p["rl.lr"] for p in many} & {
        p["rl.lr"] for p in sweep_points(spec(kind, num_samples=21, seed=1))
    }
    assert all(1e-5 <= p["rl.lr"] <= 0.1 and 1 <= p["rl.num_epochs"] <= 8 for p in many)


def test_what_else_varies_changes_nothing_of_a_random_draw():
    alone = sweep_points(spec("random", parameters={"rl.lr": LR}))
    both = sweep_points(spec("random"))
    assert [p["rl.lr"] for p in alone] == [p["rl.lr"] for p in both]


def test_what_is_drawn_twice_is_one_member():
    points = sweep_points(spec("random", parameters={"a": [1, 2]}, num_samples=40))
    assert sorted(p["a"] for p in points) == [1, 2]


def test_distributions_reach_their_ends_and_no_further():
    rate, number = LogUniform(low=1e-3, high=0.3), Integers(low=1, high=3, log=True)
    assert (rate.at(0.0), rate.at(1.0)) == (1e-3, 0.3)
    assert {number.at(k / 50) for k in range(51)} == {1, 2, 3}
    plain, choice = Integers(low=1, high=3), Choices(values=["a", "b"])
    assert [plain.at(k / 6) for k in range(7)] == [1, 1, 2, 2, 3, 3, 3]
    assert [choice.at(k / 4) for k in range(5)] == ["a", "a", "b", "b", "b"]
    assert rate.at(1 / 3) == float(f"{rate.at(1 / 3):.6g}")
    ends = corner_points({"lr": rate, "n": number})
    assert ends == [{"lr": 1e-3, "n": 1}, {"lr": 0.3, "n": 1}, {"lr": 1e-3, "n": 3}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "gridd"}, r"sweep.kind: unknown 'gridd'.*Did you mean 'grid'"),
        ({}, "sweep.kind: got None"),
        ({"kind": "zip", "parameters": {"a": [1, 2], "b": [1]}}, "a has 2, b has 1"),
        ({"kind": "grid", "parameters": {"a": 3}}, r"sweep.parameters.a: got 3, expected a list"),
        ({"kind": "grid", "parameters": {"a": [1, 1]}}, "a: duplicate value 1"),
        ({"kind": "grid", "parameters": {"settings.home": ["a"]}}, "not a setting"),
        (
            {"kind": "random", "num_samples": 3, "parameters": {"a": {**LR, "low": 1}}},
            r"sweep.parameters.a: .*low < high, got low=1.0 and high=0.1",
        ),
        (
            {"kind": "random", "num_samples": 3, "parameters": {"a": {**LR, "low": 0.1}}},
            r"low < high, got low=0.1 and high=0.1",
        ),
        (
            {"kind": "random", "num_samples": 3, "parameters": {"a": {**LR, "low": 0}}},
            r"sweep.parameters.a.low: got 0",
        ),
        (
            {"kind": "random", "num_samples": 3, "parameters": {"a": {**LR, "kind": "uniforn"}}},
            "Did you mean 'uniform'",
        ),
        (
            {"kind": "random", "num_samples": 3, "parameters": {"a": {**LR, "hihg": 3}}},
            r"sweep.parameters.a.hihg: unknown parameter.*Did you mean.*high",
        ),
        ({"kind": "random", "parameters": {"a": [1]}}, "sweep.num_samples: missing"),
        (
            {"kind": "sobol", "num_samples": 2, "parameters": {"a": [1]}, "for_each": {"a": [2]}},
            "a is also in `parameters`",
        ),
        (
            {"kind": "optuna", "parameters": {"a": [1]}, "metric": "x", "num_trials": 2},
            "sweep.metric: got 'x'",
        ),
    ],
)
def test_what_is_wrong_is_said(given, message):
    with pytest.raises(RatchetError, match=message):
        read_sweep_spec(given)


def test_the_command_line_stands_above_the_file():
    file = spec("random")
    found = with_assignments(file, {"seed": [0, 1]}, ["rl.num_epochs"])
    assert list(found.parameters) == ["rl.lr"]
    assert found.for_each == {"seed": [0, 1]}
    assert with_assignments(None, {"seed": [0, 1]}, []) == GridSweep(parameters={"seed": [0, 1]})
    grid = with_assignments(spec("grid", parameters={"a": [1, 2]}), {"a": [3, 4]}, [])
    assert grid.parameters == {"a": [3, 4]}
    with pytest.raises(ParameterError, match="overrides all of"):
        with_assignments(file, {}, ["rl.num_epochs", "rl.lr"])
    chosen = spec("optuna", metric="train/x", num_trials=3)
    with pytest.raises(ParameterError, match=r"sweep.parameters.seed=\[0, 1\]"):
        with_assignments(chosen, {"seed": [0, 1]}, [])


def test_a_file_has_a_section_that_no_result_depends_on(tmp_path):
    file = tmp_path / "exp.yaml"
    text = "scenario: graph_isomorphism\ntrainer: vanilla_ppo\ndataset: generated\n"
    file.write_text(text)
    plain = load_experiment(file)
    section = "sweep: {kind: random, num_samples: 3, parameters: {rl.lr: [0.1, 0.2]}}\n"
    file.write_text(text + section)
    found = load_experiment(file, ["sweep.num_samples=7"])
    assert found.sweep.num_samples == 7
    assert found.sweep.parameters["rl.lr"].values == [0.1, 0.2]
    assert found.hyper_params == plain.hyper_params
    with pytest.raises(ParameterError, match=r"sweep.num_sample: unknown.*num_samples"):
        load_experiment(file, ["sweep.num_sample=7"])
