"""Reports never fail because of numbers: values that are not finite are left out and marked."""

from __future__ import annotations

import json
import math
import random
import re

import pytest
from made_runs import make_run

from ratchet.reports import build_report
from ratchet.reports.content import Arm
from ratchet.reports.curves import MAX_POINTS, SMOOTHING_WINDOW, curve_figures, smooth, thin
from ratchet.reports.plots import rounded
from ratchet.reports.sweep.page import LiveSweepPage
from ratchet.tracking.metrics import MetricPoint
from ratchet.tracking.result_table import ResultTable
from ratchet.tracking.stage_kinds import TRAIN
from ratchet.tracking.sweep_folder import SweepMemberRecord, SweepRecord, write_sweep

ODD = {
    "opposite infinities": [math.inf, -math.inf],
    "overflow": [1.5e308, 1.5e308],
    "negative overflow": [-1.7976931348623157e308, 1.7976931348623157e308],
    "nan": [math.nan, math.nan],
}


def drawn(values, name="score"):
    points = [MetricPoint("train", i, {name: value}) for i, value in enumerate(values)]
    (figure,) = curve_figures([Arm("main", {}, points, {}, [])], TRAIN)
    return figure


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("length", [4, 50, 700, 6000])
def test_curves_leave_out_and_mark_values_that_are_not_finite(odd, length):
    values = [0.5] * length
    values[1:3] = ODD[odd]
    figure = drawn(values)
    json.dumps(figure.to_dict(), allow_nan=False)
    marks = [trace for trace in figure.data if trace.get("yaxis") == "y2"]
    if math.isfinite(ODD[odd][0]):
        assert not marks
    else:
        assert marks[0]["x"] == [1, 2]
        kinds = ", ".join(sorted(set(map(str, ODD[odd]))))
        assert f"×: 2 of {length:,} values are {kinds} and left out" in figure.note
        assert "yaxis2" in figure.layout
        line = next(trace for trace in figure.data if "name" in trace)
        assert {y for y in line["y"] if y is not None} == {0.5}


@pytest.mark.parametrize("odd", ODD)
def test_a_report_with_odd_numbers_everywhere_is_written(odd, tmp_path):
    folder = make_run(tmp_path, "run", 6)
    for iteration in range(60):
        value = ODD[odd][iteration % 2] if iteration % 30 < 2 else 0.1 * iteration
        names = ("loss", "prover.loss", "verifier.loss", "accuracy", "std_reward", "score")
        folder.append_metrics("log_stats", iteration, dict.fromkeys(names, value))
    folder.append_metrics("validate", 0, {"reward": ODD[odd][0]})
    rows = [1.0, 2.0, *filter(math.isfinite, ODD[odd]), 3.0, 4.0][:4]  # tables refuse others
    folder.write_table(
        ResultTable(
            "test-hard",
            {"datapoint_id": [0, 1, 2, 3], "reward.prover": rows, "metric.quality": rows},
        )
    )
    page = build_report(folder).read_text()
    text = re.search(r'id="figures" type="application/json">(.*?)</script>', page, re.S)[1]
    json.loads(text, parse_constant=pytest.fail)
    record = [SweepMemberRecord(run_id="run", changes={"seed": 0})]
    write_sweep(tmp_path, SweepRecord(sweep_id="s", name="s", members=record, command=["ratchet"]))
    LiveSweepPage(tmp_path, "s").close()
    assert (tmp_path / "s" / "sweep.html").exists()


def test_one_rule_for_neighbours_that_are_not_finite():
    """The mean of finite neighbours; NaN only without any."""
    values = [math.nan if i % 150 == 0 else i / 100_000 for i in range(100_000)]
    _, thinned = thin((list(range(100_000)), values))
    assert len(thinned) == MAX_POINTS
    assert not any(map(math.isnan, thinned))
    assert smooth([1.0, math.nan, 3.0], 3) == [1.0, 2.0, 3.0]
    assert smooth([1.0, math.inf, -math.inf, 3.0], 3) == [1.0, 1.0, 3.0, 3.0]
    assert math.isnan(smooth([1.0, *[math.nan] * 3, 3.0], 3)[2])
    assert thin((list(range(1000)), [math.nan, 4.0] * 500))[1] == [4.0] * 500
    assert rounded([1.7976931348623157e308, math.inf]) == [1.7976931348623157e308, None]


def test_a_long_curve_keeps_its_minima_and_maxima_and_says_so():
    values = [i / 100_000 for i in range(100_000)]
    values[54_321], values[12_345] = -5.0, 7.0
    figure = drawn(values)
    low, high, line = figure.data
    assert (min(low["y"]), max(high["y"])) == (-5.0, 7.0)
    assert high["fill"] == "tonexty"
    assert line["x"][0] == 100
    assert line["y"][0] == pytest.approx(99.5 / 100_000)
    assert figure.note == "each point is the mean of 200 values, band: their lowest and highest"


def test_the_smoothing_does_not_depend_on_the_length():
    rng = random.Random(1)
    values = [rng.gauss(0, 1) for _ in range(500)]
    short, long = drawn(values[:100]), drawn(values)
    assert short.note == long.note == f"thick line: moving mean of {SMOOTHING_WINDOW} values"
    assert short.data[-1]["y"][:90] == long.data[-1]["y"][:90]
    assert drawn(values[:30]).note == ""
