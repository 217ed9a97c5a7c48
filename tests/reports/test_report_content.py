"""Reports show the numbers of the run folder and depend only on it."""

import math
import random
import re
from dataclasses import replace

import pytest

from ratchet.errors import DataError, RunNotFoundError
from ratchet.reports import build_comparison, build_report
from ratchet.reports.content import Arm, read_content
from ratchet.reports.curves import (
    MAX_POINTS,
    by_family,
    curve_figures,
    family_of,
    is_constant,
    smooth,
    split_agent,
    thin,
)
from ratchet.reports.labels import metric_label
from ratchet.reports.plots import group_figures
from ratchet.reports.report import tests_greedily as is_tested_greedily
from ratchet.reports.tables import (
    accuracy_rows,
    difference_rows,
    duration,
    group_tables,
    parameter_rows,
    show,
    stage_summaries,
)
from ratchet.statistics import wilson_interval
from ratchet.tracking import MetricPoint, RunFolder, RunManifest, StageRecord
from ratchet.tracking.files import standalone_page
from ratchet.tracking.manifest import ITERATION_STAGES
from ratchet.tracking.stage_kinds import KINDS


@pytest.fixture
def arms(run):
    return read_content([run]).arms


def test_reports_share_one_copy_of_the_plotting_library(run):
    path = build_report(run.path)
    page = path.read_text()
    [shared] = run.path.parent.glob("plotly-*.js")
    assert "plotly.js v" not in page
    assert f'src="../{shared.name}"' in page
    assert shared.read_text() in standalone_page(path)
    shared.unlink()
    assert standalone_page(path) == page
    build_report(run.path)
    assert shared.exists()


def test_a_standalone_report_is_one_page_without_external_resources(run):
    path = build_report(run.path, standalone=True)
    page = path.read_text()
    assert path.stat().st_size < 6e6
    assert page.count("plotly.js v") == 1
    assert page.count("Tests use the most likely actions") == 1
    assert not list(run.path.parent.glob("plotly-*.js"))
    own = re.sub(r"<script>/\*.*?</script>", "", page, count=1, flags=re.DOTALL)
    assert not re.search(r"(src|href)=\"https?://(?!127\.0\.0\.1:4200)", own)
    assert "default-src 'none'" in own
    assert "&lt;b&gt;later" in own


def test_a_run_that_has_just_started_has_a_report(tmp_path):
    folder = RunFolder.create(tmp_path, RunManifest(run_id="new", name="<script>alert(1)</script>"))
    page = build_report(folder).read_text()
    assert "<script>alert" not in page
    assert 'id="accuracy"' not in page
    folder.append_metrics("train", 0, {"loss": math.nan, "</script><script>alert(2)": 1.0})
    page = build_report(folder).read_text()
    assert 'id="training"' in page
    assert "<script>alert" not in page.lower()


def test_a_folder_without_a_run_has_no_report(tmp_path):
    with pytest.raises(RunNotFoundError, match="contains no run"):
        build_report(tmp_path)


def test_runs_are_compared_on_one_page(run, tmp_path):
    other = RunFolder.create(run.path.parent, RunManifest(run_id="other", name="other"))
    for table in run.read_tables():
        other.write_table(table)
    page = build_comparison([run, other], tmp_path / "out" / "compare.html").read_text()
    assert "2 runs compared" in page
    rows = difference_rows(read_content([run, other]).arms)
    assert [row.second for row in rows if row.dataset == "test"][:3] == [
        "nip-1234abcd · alone",
        "other",
        "other · alone",
    ]
    assert next(row for row in rows if row.second == "other").estimate.value == 0
    with pytest.raises(DataError, match="at least two"):
        build_comparison([run], tmp_path / "x.html")


def test_accuracy_rows_contain_the_numbers_of_the_tables(run, arms):
    rows = accuracy_rows(arms)
    assert [(row.arm, row.dataset, row.alone) for row in rows] == [
        ("main", "test", False),
        ("alone", "test", False),
        ("main", "test-large", False),
        ("main · verifier pretrained", "test", True),
    ]
    columns = next(t for t in run.read_tables() if (t.arm, t.name) == ("main", "test")).columns
    assert rows[0].estimate.value == sum(columns["correct"]) / 720
    assert rows[0].estimate.n == 600
    assert rows[0].who == "vanilla_ppo · nip"
    assert rows[3].who == "pretraining"


def test_differences_are_computed_to_every_other_arm_and_to_single_agents(arms):
    rows = difference_rows(arms)
    assert [row.second for row in rows] == ["alone", "main · verifier pretrained"]
    assert all(row.estimate.excludes_zero for row in rows)
    assert all("paired" in row.estimate.method for row in rows)


def test_wl_scores_are_named_and_in_order(arms):
    ((groups, rows),) = group_tables(arms)
    labels = [row.label for row in rows if row.dataset == "test"]
    assert labels == ["isomorphic", "round 1", "round 2", "round 3", "round 5", "not within 5"]
    assert sum(row.cells[0].n for row in rows if row.dataset == "test") == 600
    assert [cell is None for cell in rows[-1].cells] == [False, True, True]
    assert groups.label(9) == "9", "groups without a name are labelled by their value"
    figures = group_figures(groups, rows, ["main", "alone", "verifier"])
    assert [figure.title for figure in figures] == ["test", "test-large"]
    assert [len(figure.data) for figure in figures] == [3, 1]


def test_parameters_that_differ_come_first(arms):
    rows = parameter_rows(arms)
    changed = {row.path: (row.default, *row.values) for row in rows if row.differs}
    assert changed["rl.lr"] == ("0.003", "0.003", "0.001")
    assert changed["rl.num_iterations"] == ("1000", "240", "240")
    assert changed["trainer"] == ("", "vanilla_ppo", "solo_agent")
    assert "agents._default.d_gnn" not in changed
    assert [row.differs for row in rows] == sorted((row.differs for row in rows), reverse=True)


def test_parameters_of_an_unknown_scenario_are_shown_unchanged(tmp_path):
    manifest = RunManifest(run_id="x", name="x", arms={"main": {"scenario": "mine", "a": {"b": 1}}})
    content = read_content([RunFolder.create(tmp_path, manifest)])
    assert {row.path: row.values for row in parameter_rows(content.arms)}["a.b"] == ["1"]


def test_stages_are_summed_by_arm_and_kind(arms):
    train = next(row for row in stage_summaries(arms) if (row.arm, row.stage) == ("main", "train"))
    assert (train.iterations, train.cached, train.computed) == (240, 9, 15)
    assert train.seconds == pytest.approx(24 * 6.2)


def _text_arm(num_iterations):
    stages = [("build_scenario", 0), ("initial_state", 0)]
    for i in range(num_iterations):
        stages += [(stage, i) for stage in ITERATION_STAGES]
    stages += [("test", num_iterations), ("test-hard", num_iterations)]
    records = [StageRecord(stage=name, iteration=i, key="0", hit=False) for name, i in stages]
    return Arm("main", {}, [], {}, records)


def test_iterations_of_chat_model_stages_are_counted_not_summed():
    summed = {row.stage: row.iterations for row in stage_summaries([_text_arm(6)])}
    assert summed == dict.fromkeys(ITERATION_STAGES, 6) | dict.fromkeys(
        ("build_scenario", "initial_state", "test", "test-hard"), 0
    )


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("kl", "KL"),
        ("approx_kl", "Approx KL"),
        ("gnn.lr", "GNN · learning rate"),
        ("round_1.expected_reward", "Round 1 · expected reward"),
        ("weekly", "Weekly"),
    ],
)
def test_metric_labels_are_readable(name, label):
    assert metric_label(name) == label


def _learning_arm(label, agents, num_iterations=6):
    """Return an arm with losses of each agent, and their sums for the optimizer."""
    rng, points = random.Random(label), []
    for i in range(num_iterations):
        own = {agent: (rng.gauss(0, 0.1), rng.random()) for agent in agents}
        values = {f"{agent}.policy_loss": policy for agent, (policy, _) in own.items()}
        values |= {f"{agent}.critic_loss": critic for agent, (_, critic) in own.items()}
        values |= {f"{agent}.policy.lr": 0.01 for agent in agents}
        values["loss_objective"] = math.fsum(policy for policy, _ in own.values())
        values["loss_critic"] = 0.5 * math.fsum(critic for _, critic in own.values())
        values |= {"accuracy": 0.5, "decided_fraction": 0.9 + 0.01 * i, "a_ratio": 1.0}
        values |= {"kl": rng.random(), "worst_reward": -1.0, "auxiliary_loss": rng.random()}
        points.append(MetricPoint("train", i, values, label))
    return Arm(label, {}, points, {}, [])


def test_a_loss_is_drawn_once_and_constant_metrics_come_last():
    arms = [_learning_arm("main", ("prover", "verifier")), _learning_arm("alone", ("verifier",))]
    figures = curve_figures(arms, KINDS["train"])
    shown = [figure.title for figure in figures if not figure.folded]
    assert shown == ["KL", "Auxiliary loss", "Critic loss", "Policy loss", "Accuracy"]
    folded = [(figure.title, figure.note) for figure in figures if figure.folded]
    assert folded == [
        ("Decided fraction", ""),
        ("Worst reward", "never changes"),
        ("A ratio", "never changes"),
        ("Policy · learning rate", "never changes"),
        ("Loss critic", "0.5 × the sum of “Critic loss”"),
        ("Loss objective", "the sum of “Policy loss”"),
    ]


@pytest.mark.parametrize("values", [[0.1, 0.4, 0.2], [0.0, 0.0, 0.0]])
@pytest.mark.parametrize("other", ["mean_datapoint_accuracy", "rewarded_mean"])
def test_equal_metrics_are_drawn_once(values, other):
    points = [
        MetricPoint("train", i, {"accuracy": y, other: y, "some_other_ratio": y}, "main")
        for i, y in enumerate(values)
    ]
    figures = curve_figures([Arm("main", {}, points, {}, [])], KINDS["train"])
    (first,) = (figure for figure in figures if not figure.folded)
    assert first.title == "Accuracy"
    second = next(figure for figure in figures if "ean" in figure.title)
    assert second.note == "the same as “Accuracy”"


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.6]])
def test_accuracy_is_not_replaced_by_an_equal_metric_of_another_kind(values):
    points = [
        MetricPoint("test_during_training", i, {"accuracy": y, "recall": y, "auxiliary_loss": y})
        for i, y in enumerate(values)
    ]
    arm = Arm("main", {}, points, {}, [])
    figures = {each.title: each for each in curve_figures([arm], KINDS["test_during_training"])}
    accuracy = next(each for title, each in figures.items() if "ccuracy" in title)
    assert (accuracy.folded, accuracy.note) == (False, "")
    loss = next(each for title, each in figures.items() if "oss" in title)
    assert (loss.folded, loss.note != "") == (len(values) > 1, len(values) > 1)


def test_ticks_of_narrow_accuracies_differ_and_small_losses_have_powers_of_ten():
    points = [
        MetricPoint("train", i, {"accuracy": 0.01 + 0.005 * i, "loss_entropy": -1e-8 * i})
        for i in range(5)
    ]
    accuracy, loss = curve_figures([Arm("main", {}, points, {}, [])], KINDS["train"])
    assert accuracy.layout["yaxis"]["tickformat"] == ".3~%"
    assert (loss.family, loss.layout["yaxis"]) == ("Loss", {"exponentformat": "e"})
    assert family_of("entropy") == "Entropy"


@pytest.mark.parametrize(("count", "step"), [(1, 1), (2, 1), (7, 1), (40, None)])
def test_iteration_ticks_are_integers_on_short_axes(count, step):
    points = [MetricPoint("train", i, {"accuracy": i / 100}, "main") for i in range(count)]
    (figure,) = curve_figures([Arm("main", {}, points, {}, [])], KINDS["train"])
    assert figure.layout["xaxis"].get("dtick") == step


def test_metrics_with_too_few_points_are_not_constant():
    assert not is_constant([([0], [1.0])])
    assert not is_constant([([0, 1], [1.0, 1.0]), ([0, 1], [1.0, 2.0])])
    assert is_constant([([0, 1, 2], [1.0, math.nan, 1.0]), ([0], [3.0])])


def test_curves_are_grouped_by_metric_and_labelled_by_arm_and_agent(arms):
    figures = {figure.title: figure for figure in curve_figures(arms, KINDS["train"])}
    assert next(iter(figures)) == "Accuracy"
    reward = figures["Mean reward"]
    names = [trace["name"] for trace in reward.data if "name" in trace]
    assert names == ["main · prover", "main · verifier", "alone · verifier"]
    assert family_of("approx_kl") == "KL divergence"
    assert family_of("weekly") == "Other"
    pretraining = curve_figures(arms, KINDS["pretrain"])
    assert [t["name"] for t in pretraining[0].data if "name" in t] == ["prover", "verifier"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("prover/loss", ("loss", "prover")),
        ("mean_reward.verifier", ("mean_reward", "verifier")),
        ("agent_prover0_loss", ("agent_loss", "prover0")),
        ("improver_gain", ("improver_gain", "")),
        ("loss", ("loss", "")),
    ],
)
def test_agents_are_found_in_metric_names(name, expected):
    assert split_agent(name, ["verifier", "prover0", "prover"]) == expected


def test_long_curves_are_thinned_and_gaps_are_preserved():
    xs, ys = thin((list(range(5000)), [float(i) for i in range(5000)]))
    assert len(xs) <= MAX_POINTS
    assert sum(ys) / len(ys) == pytest.approx(2499.5)
    assert smooth([1.0, math.nan, 3.0], 3) == [1.0, 2.0, 3.0]
    assert smooth([5.0] * 4, 3) == [5.0] * 4
    point = MetricPoint("train", 0, {"loss": math.nan})
    assert point.same_values(MetricPoint("train", 0, {"loss": math.nan}))


def test_durations_are_formatted():
    assert [duration(s) for s in (0.42, 12, 59.7, 200, 7500)] == [
        "0.4 s",
        "12 s",
        "1 min 00 s",
        "3 min 20 s",
        "2 h 05 min",
    ]


def test_the_headline_interval_respects_repeated_datapoints(arms):
    estimate = accuracy_rows(arms)[0].estimate
    naive = wilson_interval(round(estimate.value * 720), 720)
    assert estimate.high - estimate.low > naive.high - naive.low


def imitating(arm):
    """Return the arm with the same metrics, of imitation."""
    points = [replace(point, stage="imitate-prover") for point in arm.points]
    return replace(arm, points=points)


def test_structured_parameters_are_shown_without_what_is_not_set():
    phases = [{"name": "both", "changes": {"rl.lr": 0.0001}, "partners": {}, "until": None}]
    assert show(phases) == "{name: both, changes: {rl.lr: 0.0001}}"


def test_the_report_describes_the_experiment(run):
    text = "What it is.\n\n  ratchet run x.yaml\n\nHow <it> works."
    run.update(settings={**run.manifest.settings, "description": text})
    page = build_report(run).read_text()
    assert '<p class="about">What it is.</p>' in page
    assert "<code>  ratchet run x.yaml</code>" in page
    assert "How &lt;it&gt; works." in page


def test_curves_show_the_start_of_phases():
    phases = [{"name": "alone", "num_iterations": 2}, {"name": "joint", "num_iterations": 4}]
    points = [MetricPoint("train", i, {"accuracy": i / 6}, "main") for i in range(6)]
    arm = Arm("main", {"phases": phases}, points, {}, [])
    (figure,) = curve_figures([arm], KINDS["train"])
    assert [line["x0"] for line in figure.layout["shapes"]] == [1.5]
    named = [(note["text"], note["x"]) for note in figure.layout["annotations"]]
    assert named == [("alone", 0), ("joint", 1.5)]
    (imitation,) = curve_figures([imitating(arm)], KINDS["imitate"])
    assert "shapes" not in imitation.layout
    plain = Arm("plain", {}, points, {}, [])
    (both,) = curve_figures([arm, plain], KINDS["train"])
    assert [note["text"] for note in both.layout["annotations"]] == ["main: alone", "main: joint"]
    other = Arm("other", {"phases": phases[:1]}, points, {}, [])
    assert "shapes" not in curve_figures([arm, other], KINDS["train"])[0].layout
    assert "shapes" not in curve_figures([plain], KINDS["train"])[0].layout


def test_charts_are_grouped_by_family_and_statistics_other_than_means_are_folded():
    names = ("std_accuracy", "worst_datapoint_accuracy", "mean_datapoint_accuracy", "accuracy")
    points = [
        MetricPoint(
            "train", i, {"loss": 1 / (i + 1)} | {n: k * i / 40 for k, n in enumerate(names, 1)}
        )
        for i in range(5)
    ]
    figures = curve_figures([Arm("main", {}, points, {}, [])], KINDS["train"])
    shown = [figure for figure in figures if not figure.folded]
    grouped = [(family, [f.title for f in members]) for family, members in by_family(shown)]
    assert grouped == [("Accuracy", ["Accuracy"]), ("Loss", ["Loss"])]


@pytest.mark.parametrize(
    ("given", "is_greedy"),
    [
        ({"trainer": "vanilla_ppo", "rl": {"test_by_sampling": False}}, True),
        ({"trainer": "vanilla_ppo", "rl": {"test_by_sampling": "both"}}, False),
        ({"trainer": "solo_agent", "rl": {"test_by_sampling": False}}, False),
        ({"trainer": "grpo", "language": {"test_temperature": 0.0}}, True),
        ({"trainer": "grpo", "language": {"test_temperature": 1.0}}, False),
    ],
)
def test_greedy_tests_are_named(given, is_greedy):
    arm = Arm("main", given, [MetricPoint("train", 0, {"accuracy": 0.5})], {}, [])
    assert is_tested_greedily(arm) == is_greedy
