"""The journal of a sweep that Optuna leads: cut off anywhere, it ends as an undisturbed one."""

from __future__ import annotations

import math

import pytest

from flows.sweeps.pruning import MemberReports
from flows.sweeps.study import SweepStudy
from ratchet.errors import ParameterError, RunPrunedError
from ratchet.parameters.sweeps import read_sweep_spec
from ratchet.tracking.metrics import MetricPoint

ITERATIONS = 6
PRUNERS = {
    "early": {"kind": "median", "num_startup_trials": 1},
    "median": {"kind": "median", "num_startup_trials": 2},
    "hyperband": {"kind": "hyperband", "max_iterations": ITERATIONS, "reduction_factor": 2},
}


class Killed(BaseException):
    pass


def spec(pruner="median", **changes):
    varies = {
        "rl.lr": {"kind": "log_uniform", "low": 1e-4, "high": 1},
        "rl.num_epochs": {"kind": "integers", "low": 1, "high": 9},
        "graph_isomorphism.graph_sizes": [[7], [8], [7, 8]],
    }
    data = {"kind": "optuna", "metric": "train/score", "num_trials": 7, "num_startup_trials": 3}
    more = {"parameters": varies, "pruner": PRUNERS[pruner]}
    return read_sweep_spec({**data, **more, **changes})


def score(changes, iteration):
    worse = abs(math.log10(changes["rl.lr"]) + 2) + 0.1 * changes["rl.num_epochs"]
    return 0.05 * iteration - worse


def play(folder, chosen, steps=10**6):
    """Run a sweep to its end, or be killed after so many steps; members are of other processes."""
    left = iter(range(steps))

    def step():
        if next(left, None) is None:
            raise Killed

    study = SweepStudy.begin(folder, chosen)
    while len(study.trials) < chosen.num_trials or study.trials[-1].state is None:
        if not study.trials or study.trials[-1].state is not None:
            changes = study.suggest()
            step()
            study.add(changes, f"run-{len(study.trials)}")
        trial = study.trials[-1]
        reports = MemberReports.of(folder, trial.run_id)
        points = [
            MetricPoint("train", i, {"score": score(trial.changes, i)}) for i in range(ITERATIONS)
        ]
        step()
        try:
            reports(points[:4])
            step()
            reports(points[4:])
            step()
            study.tell(trial, "completed", points[-1].values["score"])
        except RunPrunedError:
            step()
            study.tell(trial, "pruned", None)
    return (folder / "study.jsonl").read_text()


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_a_sweep_that_was_killed_ends_as_an_undisturbed_one(pruner, tmp_path):
    chosen = spec(pruner)
    (tmp_path / "whole").mkdir()
    whole = play(tmp_path / "whole", chosen)
    assert whole.count('"pruned"') >= 1
    for steps in (0, 2, 9, 17):
        folder = tmp_path / str(steps)
        folder.mkdir()
        with pytest.raises(Killed):
            play(folder, chosen, steps)
        with (folder / "study.jsonl").open("a") as journal:
            journal.write('{"op": "rep')  # killed in mid-line
        assert play(folder, chosen) == whole


def test_more_trials_go_on_and_anything_else_is_another_sweep(tmp_path):
    first = play(tmp_path, spec(num_trials=4))
    longer = play(tmp_path, spec(num_trials=5))
    assert longer.startswith(first)
    with pytest.raises(ParameterError, match=r"seed changed since.*\n?.*--name"):
        SweepStudy.begin(tmp_path, spec(seed=9))


def test_what_was_decided_stays_and_who_has_ended_is_left_alone(tmp_path):
    study = SweepStudy.begin(tmp_path, spec("early"))
    decided = {}
    for name, value in (("good", 1.0), ("bad", 0.0)):
        trial = study.add(study.suggest(), name)
        decided[name] = [study.report(name, i, value) for i in (0, 1)]
        if name == "good":
            study.tell(trial, "completed", value)
    assert decided == {"good": [False, False], "bad": [True, True]}
    assert SweepStudy.read(tmp_path).report("bad", 0, 5.0)  # whatever it says when asked again
    study.tell(trial, "pruned", 0.0)
    assert not study.report("bad", 2, 0.0)
    assert MemberReports.of(tmp_path, "bad") is None  # resumed alone, it trains on
    study.tell(study.add(study.suggest(), "odd"), "completed", None)  # no finite number at its end
    assert study.suggest() == SweepStudy.read(tmp_path).suggest()
    assert study.suggest(1) != study.suggest()
