"""The page of a sweep shows its current status and the limits of its numbers."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
from made_runs import make_run, table
from typer.testing import CliRunner

from flows.cli.main import app
from ratchet.errors import DataError, RunNotFoundError
from ratchet.reports.sweep.page import LiveSweepPage, make_sweep_page, write_sweep_page
from ratchet.tracking.environment import CodeState
from ratchet.tracking.metrics import MetricPoint
from ratchet.tracking.run_lock import RunLock
from ratchet.tracking.sweep_folder import SweepMemberRecord, SweepRecord, write_sweep


def record(runs, members, spec=None):
    made = [SweepMemberRecord(run_id=run_id, changes=changes) for run_id, changes in members]
    spec = spec or {}
    sweep = SweepRecord(sweep_id="s-1", name="s", spec=spec, members=made, command=["ratchet"])
    write_sweep(runs, sweep)


@pytest.fixture
def begun(tmp_path):
    """Create a sweep: nine members completed, one failed, one not started."""
    members = []
    for k in range(9):
        lr, seed = (0.1, 0.01, 0.001)[k % 3], k // 3
        make_run(tmp_path, f"m{k}", 9 - 2 * (k % 3), rl__lr=lr, seed=seed)
        members.append((f"m{k}", {"rl.lr": lr, "seed": seed}))
    failed = make_run(tmp_path, "m9", 5, rl__lr=0.5)
    for file in (failed.path / "tables").iterdir():
        file.unlink()
    failed.set_status("failed", "loss is <b>NaN</b>")
    members += [("m9", {"rl.lr": 0.5, "seed": 0}), ("m10", {"rl.lr": 0.5, "seed": 1})]
    record(tmp_path, members)
    return tmp_path


def test_members_are_sorted_by_score_and_then_by_status(begun):
    page = make_sweep_page(begun, "s")
    assert page.status.counts == "9 completed, 1 failed, 1 not started"
    rows = page.status.table.to_records()
    scores = [row["score"] for row in rows[:9]]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == 0.9
    assert [(row["status"], row["score"]) for row in rows[9:]] == [
        ("failed", None),
        ("not started", None),
    ]
    assert rows[9]["iteration"] == 5
    assert page.status.measure == "test accuracy"
    assert page.status.training == "train/verifier.accuracy"


def test_importance_excludes_the_seed_and_states_its_limits(begun):
    page = make_sweep_page(begun, "s-1")
    assert [each.path for each in page.importance.parameters] == ["rl.lr"]
    assert page.importance.parameters[0].value > 0.5
    text = " ".join(page.notes)
    assert "permutation importance, out of sample" in text
    assert "has no direction" in text


def test_the_page_is_complete_at_any_time(tmp_path):
    record(tmp_path, [("m0", {"seed": 0}), ("m1", {"seed": 1})])
    nothing = make_sweep_page(tmp_path, "s-1")
    assert nothing.status.counts == "2 not started"
    html = nothing.render("")
    assert "plotly" not in html
    assert "at least 8 scored members" in html
    make_run(tmp_path, "m0", 7, seed=0)
    one = make_sweep_page(tmp_path, "s-1")
    assert "Best so far: 70.0 % (one seed) with all members; test accuracy." in one.render("")
    make_run(tmp_path, "m1", 8, seed=1)
    path = write_sweep_page(make_sweep_page(tmp_path, "s-1"), tmp_path / "s-1")
    assert set(re.findall(r'class="plot" id="([^"]+)"', path.read_text())) == {"coordinates"}


def test_the_page_reloads_only_during_the_sweep(begun):
    assert 'http-equiv="refresh"' not in make_sweep_page(begun, "s-1").render("")
    presence = RunLock(begun / "s-1")
    try:
        assert 'http-equiv="refresh"' in make_sweep_page(begun, "s-1").render("")
    finally:
        presence.release()


def test_lines_cross_every_axis_and_errors_are_escaped(begun):
    html = make_sweep_page(begun, "s-1").render("")
    figures = json.loads(re.search(r'type="application/json">(.*?)</script>', html, re.S)[1])
    coordinates = next(figure for figure in figures if figure["id"] == "coordinates")
    assert len(coordinates["data"]) == 9
    assert all(len(trace["y"]) == 3 for trace in coordinates["data"])  # lr, seed, score
    best = coordinates["data"][-1]
    assert (best["meta"]["shade"], best["y"][-1]) == (1, 1)
    ticks = {(note["x"], note["text"]): note["y"] for note in coordinates["layout"]["annotations"]}
    assert ticks[0, "0.01"] == pytest.approx(
        0.5
    )  # rates differ by a factor of 100: logarithmic axis
    assert "loss is &lt;b&gt;NaN" in html


def test_pruned_members_are_listed_last_and_scores_may_be_minimised(tmp_path):
    members = []
    for k in range(9):
        status = "pruned" if k == 0 else "completed"
        make_run(tmp_path, f"m{k}", k, rl__lr=0.1 * (k + 1)).set_status(status)
        members.append((f"m{k}", {"rl.lr": 0.1 * (k + 1)}))
    record(
        tmp_path, members, {"kind": "optuna", "metric": "test/accuracy", "direction": "minimize"}
    )
    page = make_sweep_page(tmp_path, "s-1")
    assert page.status.counts == "8 completed, 1 pruned"
    assert [member.run_id for member in page.status.scored] == [
        *(f"m{k}" for k in range(1, 9)),
        "m0",
    ]
    assert page.importance.num_runs == 8
    html = page.render("")
    assert 'class="number status pruned"' in html
    assert "less is better" in html
    figures = json.loads(re.search(r'type="application/json">(.*?)</script>', html, re.S)[1])
    best = figures[0]["data"][-1]
    assert (best["text"], best["meta"]["shade"]) == ("rl.lr=0.2: 10.0 %", pytest.approx(0.875))


def test_a_search_has_a_page_before_any_member_has_recorded_its_metric(tmp_path, caplog):
    make_run(tmp_path, "m0", 0, rl__lr=0.1)
    spec = {"kind": "optuna", "metric": "validate/score"}
    record(tmp_path, [("m0", {"rl.lr": 0.1})], spec)
    LiveSweepPage(tmp_path, "s-1").close()
    assert not caplog.records
    assert "m0" in (tmp_path / "s-1" / "sweep.html").read_text()
    assert make_sweep_page(tmp_path, "s-1").status.scored == []
    with pytest.raises(DataError, match="no member has recorded 'validate/score'"):
        make_sweep_page(tmp_path, "s-1", "validate/score")


def test_groups_name_arms_with_their_number_of_seeds_code_and_data(tmp_path):
    members = []
    for k, (lr, seed) in enumerate((lr, seed) for lr in (0.1, 0.01) for seed in range(5)):
        folder = make_run(tmp_path, f"m{k}", 6 + seed % 2, rl__lr=lr, seed=seed)
        other = table("test", 9 if lr == 0.1 else 2 + seed)
        folder.write_table(replace(other, arm="alone"))
        members.append((f"m{k}", {"rl.lr": lr, "seed": seed}))
    folder.update(code=CodeState(commit="badc0de" * 6, dirty=True))
    record(tmp_path, members)
    page = make_sweep_page(tmp_path, "s-1")
    assert [(g.label, len(g.scores)) for g in page.groups] == [
        ("arm alone · rl.lr=0.1", 5),
        ("arm main · rl.lr=0.1", 5),
        ("arm main · rl.lr=0.01", 5),
        ("arm alone · rl.lr=0.01", 5),
    ]
    assert page.best == "90.0 % (the IQM of 5 seeds) with arm alone · rl.lr=0.1"
    html = page.render("")
    assert '<td class="strong">arm main · rl.lr=0.01</td><td class="number">5</td>' in html
    assert "seed=" not in page.best
    assert "Code: badc0debadc0+, c0ffeec0ffee (+: with changes or untracked files)." in html
    assert f"test {'b' * 16}; train {'a' * 16}." in html
    # pruned and failed members do not count
    folder.set_status("pruned")
    counts = [len(group.scores) for group in make_sweep_page(tmp_path, "s-1").groups]
    assert sorted(counts) == [4, 4, 5, 5]


def test_a_different_metric_can_be_the_score_during_the_sweep(begun):
    page = make_sweep_page(begun, "s-1", "train/verifier.accuracy")
    assert sum(member.score is not None for member in page.status.members) == 10
    with pytest.raises(DataError, match="Did you mean 'train/verifier"):
        make_sweep_page(begun, "s-1", "train/verifier.acuracy")
    with pytest.raises(RunNotFoundError, match=r"sweep\.json"):
        make_sweep_page(begun, "nothing")


def test_the_command_writes_the_page_to_the_sweeps_folder(begun):
    result = CliRunner().invoke(app, ["sweep-page", "s-1", "--runs-dir", str(begun)])
    assert result.exit_code == 0, result.output
    assert "9 completed, 1 failed, 1 not started" in result.output
    assert "Best so far  90.0 %" in result.output
    assert (begun / "s-1" / "sweep.html").exists()
    result = CliRunner().invoke(app, ["sweep-page", "s-1", "--runs-dir", str(begun), "--json"])
    members, importance, groups = json.loads(result.output)["tables"]
    assert len(members["rows"]) == 11
    assert [row["n"] for row in groups["rows"]] == [3, 3, 3]
    assert importance["rows"][0]["path"] == "rl.lr"


def test_a_score_that_is_not_finite_is_the_worst_one(tmp_path):
    members = []
    for k in range(12):
        folder = make_run(tmp_path, f"m{k}", 6, rl__lr=0.1 * (k // 2 + 1), seed=k % 2)
        value = {2: math.nan, 4: math.inf, 5: -math.inf}.get(k, 5.0 - k)
        if k != 1:
            folder.append_points([MetricPoint("validate", 0, {"score": value})])
        members.append((f"m{k}", {"rl.lr": 0.1 * (k // 2 + 1), "seed": k % 2}))
    record(tmp_path, members, {"kind": "optuna", "metric": "validate/score"})
    page = make_sweep_page(tmp_path, "s-1")
    assert [m.run_id for m in page.status.scored][:2] == ["m0", "m3"]
    assert [m.run_id for m in page.status.diverged] == ["m2", "m4", "m5"]
    rows = page.status.table.to_records()
    assert [row["run"] for row in rows[-4:]] == ["m2", "m4", "m5", "m1"]
    assert [(len(g.scores), g.num_diverged) for g in page.groups][-2:] == [(1, 1), (0, 2)]
    assert page.importance.num_runs == 8
    html = page.render("")
    assert "Best so far: 5.000 (one seed) with rl.lr=0.1" in html
    assert "validate/score is not finite, which counts as the worst score: rl.lr=0.2" in html
    assert "1 of 2" in html
    assert "0 of 2" in html
