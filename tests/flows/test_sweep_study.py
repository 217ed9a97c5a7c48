"""The journal of an Optuna sweep: interruptions at any line do not change the result."""

from __future__ import annotations

import json
import math

import pytest

from flows.sweeps.study import MAX_ATTEMPTS, MemberReports, SweepStudy
from ratchet.errors import ParameterError, RunPrunedError
from ratchet.parameters.sweeps import read_sweep_spec
from ratchet.tracking.metrics import MetricPoint

ITERATIONS = 6
PRUNERS = {
    "none": "none",
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
    """Run a sweep to its end, or raise after the given steps; members act as other processes."""
    left = iter(range(steps))

    def step():
        if next(left, None) is None:
            raise Killed

    study = SweepStudy.start(folder, chosen)
    while len(study.trials) < chosen.num_trials or study.trials[-1].state is None:
        if not study.trials or study.trials[-1].state is not None:
            changes = study.suggest()
            step()
            study.add(changes, f"run-{len(study.trials)}")
        trial = study.trials[-1]
        reports = MemberReports.for_member(folder, trial.run_id)
        points = [
            MetricPoint("train", i, {"score": score(trial.changes, i)}) for i in range(ITERATIONS)
        ]
        step()
        try:
            reports(points[:4])
            step()
            reports(points[4:])
            step()
            study.finish(trial, points[-1].values["score"])
        except RunPrunedError:
            step()
            study.finish_pruned(trial)
    return (folder / "study.jsonl").read_text()


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_a_killed_sweep_ends_like_an_undisturbed_one(pruner, tmp_path):
    chosen = spec(pruner)
    (tmp_path / "whole").mkdir()
    complete = play(tmp_path / "whole", chosen)
    assert complete.count('"pruned"') >= 1
    for steps in (0, 2, 9, 17):
        folder = tmp_path / str(steps)
        folder.mkdir()
        with pytest.raises(Killed):
            play(folder, chosen, steps)
        with (folder / "study.jsonl").open("a") as journal:
            journal.write('{"op": "rep')  # killed while writing a line
        assert play(folder, chosen) == complete


def test_more_trials_continue_a_study_and_other_changes_are_refused(tmp_path):
    first = play(tmp_path, spec(num_trials=4))
    longer = play(tmp_path, spec(num_trials=5))
    assert longer.startswith(first)
    with pytest.raises(ParameterError, match=r"seed changed since.*\n?.*--name"):
        SweepStudy.start(tmp_path, spec(seed=9))


def test_decisions_do_not_change_and_ended_members_are_not_pruned(tmp_path):
    study = SweepStudy.start(tmp_path, spec("early"))
    decided = {}
    for name, value in (("good", 1.0), ("bad", 0.0)):
        trial = study.add(study.suggest(), name)
        decided[name] = [study.report(name, i, value) for i in (0, 1)]
        if name == "good":
            study.finish(trial, value)
    assert decided == {"good": [False, False], "bad": [True, True]}
    assert SweepStudy.read(tmp_path).report("bad", 0, 5.0)  # regardless of the repeated value
    study.finish_pruned(trial)
    assert (trial.state, trial.value) == ("pruned", 0.0)
    assert not study.report("bad", 2, 0.0)
    assert MemberReports.for_member(tmp_path, "bad") is None  # resumed separately, it continues
    study.finish(study.add(study.suggest(), "odd"), None)  # has not recorded the metric
    assert study.suggest() == SweepStudy.read(tmp_path).suggest()
    assert study.suggest(1) != study.suggest()


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_search_avoids_the_region_where_scores_are_not_finite(direction, bad, tmp_path):
    """Rates above 0.03 diverge; without that knowledge 80 % of the suggestions do."""
    varies = {"rl.lr": {"kind": "log_uniform", "low": 1e-4, "high": 10.0}}
    changes = {"parameters": varies, "pruner": "none", "direction": direction, "num_trials": 30}
    study = SweepStudy.start(tmp_path, spec(num_startup_trials=8, **changes))
    sign = 1 if direction == "minimize" else -1
    for number in range(30):
        trial = study.add(study.suggest(), f"run-{number}")
        rate = trial.changes["rl.lr"]
        study.finish(trial, bad if rate > 0.03 else sign * (math.log10(rate) + 2.5) ** 2)
    late = [trial.changes["rl.lr"] > 0.03 for trial in study.trials[8:]]
    assert sum(late) <= 8
    again = SweepStudy.read(tmp_path)
    assert [str(trial.value) for trial in again.trials] == [str(t.value) for t in study.trials]
    assert again.suggest() == study.suggest()


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_a_search_tries_all_choices_when_all_scores_are_not_finite(sampler, tmp_path):
    varies = {"rl.lr": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}
    study = SweepStudy.start(
        tmp_path, spec(parameters=varies, sampler=sampler, num_startup_trials=2)
    )
    seen = set()
    for number in range(6):
        suggestions = (study.suggest(attempt)["rl.lr"] for attempt in range(MAX_ATTEMPTS))
        rate = next(each for each in suggestions if each not in seen)
        seen.add(rate)
        study.finish(study.add({"rl.lr": rate}, f"run-{number}"), math.nan)
    assert len(seen) == 6


def test_reports_that_are_not_finite_are_recorded_and_pruned(tmp_path):
    study = SweepStudy.start(tmp_path, spec("early"))
    study.finish(study.add(study.suggest(), "good"), 1.0)
    for name, value in (("nan", math.nan), ("inf", math.inf)):
        trial = study.add(study.suggest(), name)
        assert study.report(name, 0, value)
        SweepStudy.read(tmp_path).finish_pruned(trial)  # the member reported in another process
        line = json.loads((tmp_path / "study.jsonl").read_text().splitlines()[-1])
        assert (line["state"], line["value"]) == ("pruned", name)
