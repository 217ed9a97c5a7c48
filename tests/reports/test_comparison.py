"""Comparisons group by differing parameters, treat seeds as repetitions, and validate runs."""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import replace

import pytest
from made_runs import labels, make_run, make_sweep, table

from ratchet.errors import DataError, ParameterError
from ratchet.reports.comparison.comparing import compare_runs
from ratchet.reports.comparison.display_tables import learning_table, pair_table
from ratchet.reports.comparison.files import (
    BEGIN,
    BEGIN_MAIN,
    END,
    FURTHER,
    to_data,
    write_comparison,
    write_document,
)
from ratchet.reports.comparison.options import Options, planned_pairs, reference_values
from ratchet.reports.comparison.published import read_published
from ratchet.reports.comparison.svg_figure import draw_profiles, draw_svg, look_of
from ratchet.reports.comparison.text import to_markdown
from ratchet.reports.labels import ranges

QUICK = Options(num_resamples=300)


def by_name(comparison, name):
    (found,) = [each for each in comparison.metrics if each.metric.name == name]
    return found


@pytest.fixture
def sweep(tmp_path):
    return make_sweep(tmp_path)


def test_groups_differ_in_parameters_and_seeds_are_repetitions(sweep):
    comparison = compare_runs(sweep, options=QUICK)
    assert labels(comparison) == ["adp", "nip"]
    assert list(comparison.grouping.paths) == ["interaction_protocol"]
    assert [group.seeds for group in comparison.grouping.groups] == [[0, 1, 2], [0, 1, 2]]
    found = by_name(comparison, "test")
    assert [list(row.scores) for row in found.rows] == [[[0.5, 0.6, 0.7]], [[0.8, 0.9, 0.9]]]
    assert found.rows[0].iqm.value == pytest.approx(0.6)
    assert found.rows[1].gap.value == pytest.approx(1 - 2.6 / 3)
    assert found.improvement("nip", "adp").value == 1
    assert math.isnan(found.improvement("adp", "nip").high)  # three seeds give no interval


def test_accuracy_by_wl_score_is_computed_from_its_datapoints(sweep):
    comparison = compare_runs(sweep, options=QUICK)
    names = [each.metric.name for each in comparison.of_kind("group")]
    assert names == ["test wl 0", "test wl 1", "test wl 2", "test wl 3"]
    # datapoints 5, 11, 17 … have score 3; 5 of 10 end in 5 or less
    odd = by_name(comparison, "test wl 3")
    columns = table("test", 6).columns
    right = [c for c, s in zip(columns["correct"], columns["wl_score"], strict=True) if s == 3]
    assert odd.rows[0].scores[0][1] == sum(right) / len(right)
    assert odd.improvements == []


def test_scores_are_averaged_over_tasks(tmp_path):
    path = "graph_isomorphism.num_pairs"
    rights = {("adp", 100): 3, ("adp", 200): 6, ("nip", 100): 5, ("nip", 200): 8}
    runs = [
        make_run(
            tmp_path,
            f"{protocol}-{pairs}-{seed}",
            right + seed,
            seed=seed,
            interaction_protocol=protocol,
            graph_isomorphism__num_pairs=pairs,
        )
        for (protocol, pairs), right in rights.items()
        for seed in (0, 1)
    ]
    comparison = compare_runs(runs, tasks=[path], options=QUICK)
    assert labels(comparison) == ["adp", "nip"]
    assert comparison.grouping.tasks == ["num_pairs=100", "num_pairs=200"]
    found = by_name(comparison, "test")
    assert [list(task) for task in found.rows[0].scores] == [[0.3, 0.4], [0.6, 0.7]]
    assert found.rows[0].mean.value == pytest.approx(0.5)
    with pytest.raises(DataError, match="has no run for one of the 2 values"):
        compare_runs(runs[:-2], tasks=[path], options=QUICK)
    with pytest.raises(ParameterError, match=r"rl.lr does not differ"):
        compare_runs(runs, tasks=["rl.lr"], options=QUICK)


def test_different_test_data_are_refused_unless_allowed(tmp_path, sweep):
    short = make_run(tmp_path, "short", 5, size=30, interaction_protocol="debate")
    with pytest.raises(DataError, match=r"(?s)60 datapoints.*30 datapoints|30.*60") as refusal:
        compare_runs([*sweep, short], options=QUICK)
    assert "or pass --allow-data-mismatch to compare them anyway" in str(refusal.value)
    assert "graph_isomorphism.dataset_seed=0" in str(refusal.value)
    for folder in (sweep[0], short):
        parameters = {**folder.manifest.arms["main"], "scenario": "my_scenario.py:MyScenario"}
        folder.update(arms={"main": parameters})
    with pytest.raises(DataError, match="Let every run test all datapoints") as refusal:
        compare_runs([sweep[0], short], options=QUICK)
    assert "dataset_seed" not in str(refusal.value), "a custom scenario may have none"
    comparison = compare_runs([*sweep, short], options=QUICK, different_data=True)
    assert any("Not tested on the same" in note for note in comparison.notes)
    other = make_run(tmp_path, "other", 5, interaction_protocol="debate")
    other.update(dataset_hashes={"main": {"test": "f" * 64}})
    with pytest.raises(DataError, match="not all were tested on the same datapoints"):
        compare_runs([*sweep, other], options=QUICK)


def test_each_seed_may_have_its_own_data_if_all_groups_have_the_same_seeds(tmp_path, sweep):
    for folder in sweep:
        seed = folder.manifest.arms["main"]["seed"]
        folder.update(dataset_hashes={"main": {"test": f"{seed}" * 64}})
    comparison = compare_runs(sweep, options=QUICK)
    own = "Each seed has its own test data, the same for all groups."
    assert own in comparison.notes
    assert "They cover the variation over training seeds, and that over data sets." in (
        to_markdown(comparison)
    )
    with pytest.raises(DataError, match="not all were tested on the same datapoints"):
        compare_runs(sweep[:-1], options=QUICK)  # groups of different seeds
    sweep[0].update(dataset_hashes={"main": {"test": "f" * 64}})
    with pytest.raises(DataError, match="not all were tested on the same datapoints"):
        compare_runs(sweep, options=QUICK)  # one group's data differ


def test_unfinished_runs_are_refused_or_omitted_with_a_note(tmp_path, sweep):
    failed = make_run(tmp_path, "nip-9", 5, status="failed", interaction_protocol="nip", seed=9)
    with pytest.raises(DataError, match="ratchet resume nip-9"):
        compare_runs([*sweep, failed], options=QUICK)
    comparison = compare_runs([*sweep, failed], options=QUICK, skip_unfinished=True)
    assert len(comparison.runs) == 6
    assert any("Left out" in note and "nip-9" in note for note in comparison.notes)
    with pytest.raises(DataError, match="no finished run"):
        compare_runs([failed], options=QUICK, skip_unfinished=True)


def test_pruned_members_are_omitted_with_a_note(tmp_path, sweep):
    pruned = make_run(tmp_path, "nip-9", 5, status="pruned", interaction_protocol="nip", seed=9)
    comparison = compare_runs([*sweep, pruned], options=QUICK)
    assert len(comparison.runs) == 6
    assert "Left out, since their sweep pruned them: nip-9." in comparison.notes


def test_a_repeated_experiment_counts_once(tmp_path, sweep):
    again = make_run(tmp_path, "again", 9, interaction_protocol="nip", seed=2)
    comparison = compare_runs([*sweep, again], options=QUICK)
    assert len(comparison.runs) == len(sweep)
    assert any("Counted once" in note and "nip-2, again" in note for note in comparison.notes)


def test_arms_that_are_one_experiment_count_once(tmp_path, sweep):
    again = make_run(tmp_path, "again", 9, interaction_protocol="nip", seed=2, arm="other")
    comparison = compare_runs([*sweep, again], options=QUICK)
    (note,) = (note for note in comparison.notes if "Counted once" in note)
    assert "nip-2, again" in note


def test_a_repeated_experiment_with_different_results_is_refused(tmp_path, sweep):
    again = make_run(tmp_path, "again", 7, interaction_protocol="nip", seed=2)
    with pytest.raises(DataError, match="nip-2 and again are the same experiment"):
        compare_runs([*sweep, again], options=QUICK)


def test_one_seed_has_no_interval_and_gives_a_note(tmp_path):
    runs = [
        make_run(tmp_path, protocol, right, interaction_protocol=protocol)
        for protocol, right in (("adp", 5), ("nip", 7))
    ]
    comparison = compare_runs(runs, options=QUICK)
    row = by_name(comparison, "test").rows[0]
    assert (row.iqm.value, math.isnan(row.iqm.low)) == (0.5, True)
    text = to_markdown(comparison)
    assert "| adp | 1 | 50.0 | n < 5 |" in text
    assert "Fewer than 5 seeds (adp, nip): no intervals are given" in text
    data = json.dumps(to_data(comparison), allow_nan=False)
    assert json.loads(data)["metrics"][0]["groups"][0]["iqm"]["low"] is None


def test_groups_without_a_metric_are_omitted_from_it(sweep):
    name = "test-hard/prover.reward"
    for folder in sweep[:2]:
        folder.append_metrics("test-hard", 6, {"prover.reward": 0.5})
    with pytest.raises(DataError, match="expected a number for every run"):
        compare_runs(sweep, metrics=[name], options=QUICK)
    sweep[2].append_metrics("test-hard", 6, {"prover.reward": 0.5})
    comparison = compare_runs(sweep, metrics=[name], options=QUICK)
    assert [row.group.label for row in by_name(comparison, name).rows] == ["adp"]
    assert len(comparison.metrics[0].rows) == 2
    assert draw_svg(comparison)


def test_recorded_metrics_can_be_compared_and_unknown_ones_are_refused(sweep):
    name = "test/mean_episode_length"
    comparison = compare_runs(sweep, metrics=[name], options=QUICK)
    assert list(by_name(comparison, name).rows[0].scores[0]) == [6.0, 7.0, 8.0]
    assert "## Mean episode length (test)\n" in to_markdown(comparison)
    with pytest.raises(DataError, match="Did you mean 'test/mean_episode_length'"):
        compare_runs(sweep, metrics=["test/mean_episode_lenth"], options=QUICK)


def test_recorded_shares_are_shown_in_percent_and_other_metrics_are_not(sweep):
    share, length = "test/best_response.accuracy", "test/mean_episode_length"
    for folder in sweep:
        folder.append_metrics("test", 7, {"best_response.accuracy": 0.75})
    text = to_markdown(compare_runs(sweep, metrics=[share, length], options=QUICK))
    columns = "| interaction_protocol | seeds | IQM | 95 % interval | median | mean |"
    assert f"## Best response · accuracy (test), in percent\n{columns}\n" in text
    assert "| adp | 3 | 75.0 | n < 5 | 75.0 | 75.0 |\n" in text
    assert "| adp | 3 | 7 | n < 5 | 7 | 7 |\n" in text


def test_markdown_contains_every_group_and_pair_with_explanations(sweep):
    text = to_markdown(compare_runs(sweep, title="Who wins", options=QUICK), "x.svg")
    assert text.startswith("# Who wins\n\n6 runs that differ in `interaction_protocol`; 2 groups")
    assert "![Who wins](x.svg)" in text
    assert "| adp | 3 | 60.0 | n < 5 | 60.0 | 60.0 | 40.0 |" in text
    assert "| **nip** | 100 | – |" in text
    assert "Fewer than 5 seeds (adp, nip)" in text
    assert "| round 3 |" in text
    assert f"Test data {'b' * 16}, the same for all runs." in text
    assert "Code c0ffeec0ffee." in text


INTERVAL = r"\[[−+]?\d[\d.,]*, [−+]?[\d.,∞]+[\])]"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, 3, 4, 5])
def test_below_five_seeds_no_interval_is_shown_anywhere(tmp_path, seeds):
    sweep = make_sweep(tmp_path / "runs", rights=((3, 5, 6, 7, 4)[:seeds], (6, 9, 7, 8, 7)[:seeds]))
    comparison = compare_runs(sweep, options=QUICK, metrics=["test/mean_episode_length"])
    files = write_comparison(comparison, tmp_path / "out")
    text = "\n".join(
        [
            files.markdown.read_text(),
            files.page.read_text(),
            *(str(table.rows) for table in comparison.tables),
            *(str(pair_table(comparison, each).rows) for each in comparison.metrics),
            *(str(learning_table(comparison, each).rows) for each in comparison.learning),
        ]
    )
    shown = re.findall(INTERVAL, text)
    data = json.loads(files.data.read_text())
    assert bool(shown) == (seeds == 5), shown
    bounds = [group["iqm"]["low"] for metric in data["metrics"] for group in metric["groups"]] + [
        bound for curve in data["learning"] for g in curve["groups"] for bound in g["curve"]["lows"]
    ]
    assert all((bound is None) == (seeds < 5) for bound in bounds)
    for picture in (files.picture.read_text(), draw_profiles(comparison)):
        assert ("fill-opacity: 0.15" in picture) == (seeds == 5), "bands"


def test_less_may_be_better(sweep):
    name, steps = "test/always_failed_proportion", "test/mean_episode_length"
    for folder in sweep:
        folder.append_metrics(
            "test", 7, {"always_failed_proportion": folder.manifest.seeds["main"]}
        )
    comparison = compare_runs(sweep, metrics=[name], less=[steps], options=QUICK)
    shorter = by_name(comparison, steps)  # adp: 6, 7, 8; nip: 9, 10, 10
    assert shorter.improvement("adp", "nip").value == 1
    assert shorter.improvement("nip", "adp").value == 0
    assert by_name(comparison, "test").improvement("adp", "nip").value == 0
    assert by_name(comparison, name).metric.less_is_better
    text = to_markdown(comparison)
    assert "## Mean episode length (test); less is better\n" in text
    assert "P(row better than column)" in text
    profile = shorter.rows[0].profile  # adp, below each threshold
    assert list(profile.positions) == sorted(profile.positions)
    assert (profile.values[0], profile.values[-1]) == (0, 1)
    more = by_name(compare_runs(sweep, metrics=[steps], options=QUICK), steps)
    assert more.improvement("adp", "nip").value == 0
    assert (more.rows[0].profile.values[0], more.rows[0].profile.values[-1]) == (1, 0)


def test_all_groups_can_be_compared_with_a_baseline(tmp_path):
    rights = ((1, 2, 3, 2, 1, 2), (7, 8, 9, 8, 7, 8), (2, 2, 3, 2, 1, 2), (3, 4, 6, 4, 3, 5))
    sweep = make_sweep(tmp_path, rights=rights, protocols=("adp", "nip", "mnip", "debate"))
    found = by_name(compare_runs(sweep, options=replace(QUICK, baselines=["adp"])), "test")
    assert [(p.first, p.second) for p in found.pairs] == [
        ("nip", "adp"),
        ("mnip", "adp"),
        ("debate", "adp"),
    ]
    assert len(found.improvements) == 12
    assert found.pairs[0].difference.value == pytest.approx(0.6, abs=0.05)
    assert [p.is_told_apart for p in found.pairs] == [True, False, True]
    assert found.pairs[0].adjusted == 2 / 2**6  # 64 sign flips are enumerated
    two = by_name(compare_runs(sweep, options=replace(QUICK, baselines=["adp", "nip"])), "test")
    assert [(p.first, p.second) for p in two.pairs[3:]] == [("mnip", "nip"), ("debate", "nip")]
    text = to_markdown(compare_runs(sweep, options=replace(QUICK, baselines=["adp"])))
    assert "corrected for all groups against adp" in text
    assert "differences is as likely positive as negative (all 64 permutations)" in text
    with pytest.raises(ParameterError, match=r"got 'npi', expected one of .* Did you mean 'nip'"):
        compare_runs(sweep, options=replace(QUICK, baselines=["npi"]))


def test_only_planned_pairs_are_compared(tmp_path):
    rights = ((1, 2, 3, 2, 1, 2), (7, 8, 9, 8, 7, 8), (2, 2, 3, 2, 1, 2))
    sweep = make_sweep(tmp_path, rights=rights, protocols=("adp", "nip", "mnip"))
    planned = planned_pairs(["nip vs adp", "adp vs mnip", "nip vs adp"])
    comparison = compare_runs(sweep, options=replace(QUICK, pairs=planned))
    found = by_name(comparison, "test")
    assert [(p.first, p.second) for p in found.pairs] == [("nip", "adp"), ("adp", "mnip")]
    assert {(each.first, each.second) for each in found.improvements} == {
        *{("nip", "adp"), ("adp", "nip"), ("adp", "mnip"), ("mnip", "adp")}
    }
    text = to_markdown(comparison)
    assert "P(row better than column)" not in text
    assert "P(first better), %" in text
    assert "corrected for the 2 named pairs" in text
    with pytest.raises(ParameterError, match=r"--pair: got 'npi', expected one of .* 'nip'"):
        compare_runs(sweep, options=replace(QUICK, pairs=[("npi", "adp")]))
    with pytest.raises(ParameterError, match="got --pair and --baseline, expected one"):
        compare_runs(sweep, options=replace(QUICK, pairs=planned, baselines=["adp"]))


@pytest.mark.parametrize("line", ["adp", "adp vs", "adp vs adp", "adp-nip"])
def test_a_planned_pair_names_two_groups(line):
    with pytest.raises(ParameterError, match="expected two groups as FIRST vs SECOND"):
        planned_pairs([line])


def test_seeds_are_planned_from_a_stated_effect_only(tmp_path):
    sweep = make_sweep(tmp_path, rights=((1, 2, 3, 2, 1, 2), (3, 2, 4, 2, 1, 4)))
    plain = to_markdown(compare_runs(sweep, options=QUICK))
    assert "seeds for" not in plain
    assert "would do" not in plain
    planned = compare_runs(sweep, options=replace(QUICK, effect=0.05), less=["test/accuracy"])
    (pair,) = by_name(planned, "test").pairs
    assert "| seeds for 5.0 |" in to_markdown(planned)
    assert pair.power.needed > 6
    assert by_name(planned, "test/accuracy").pairs[0].power.effect is None
    (data,) = to_data(planned)["metrics"][0]["pairs"]
    assert (data["power"]["effect"], data["power"]["needed"]) == (0.05, pair.power.needed)
    assert "seeds_that_would_do" not in data


def test_files_are_complete_and_need_no_network(sweep, tmp_path):
    comparison = compare_runs(sweep, title="</script><b>wins [once", options=QUICK)
    files = write_comparison(comparison, tmp_path / "out" / "here")
    data = json.loads(files.data.read_text())
    assert [group["label"] for group in data["groups"]] == ["adp", "nip"]
    assert len(data["metrics"][0]["probability_of_improvement"]) == 2
    page = files.page.read_text()
    sources = re.findall(r'(?:src|href)="([^"]{,26})', page)
    assert sources == ["data:,", *["data:image/svg+xml;base64,"] * 2]
    assert not re.search("<b>wins|<script", page)
    cells = re.findall(r"^\| (.*) \|$", files.markdown.read_text(), re.MULTILINE)
    shown = [cell.strip("* ") for line in cells if "---" not in line for cell in line.split(" | ")]
    rendered = [html.unescape(each) for each in re.findall(r"<t[hd][^>]*>(.*)</t[hd]>", page)]
    written = [re.sub("</?strong>", "", cell) for cell in rendered]
    assert written[: len(shown)] == shown
    assert "<code>nip-2</code>" in written[len(shown) :]
    assert files.picture.name in files.markdown.read_text()


def test_the_picture_is_deterministic_and_shows_every_group(sweep):
    comparison = compare_runs(sweep, options=QUICK)
    picture = draw_svg(comparison)
    assert picture == draw_svg(comparison)
    assert picture.startswith("<?xml")
    assert ">adp</text>" in picture
    assert ">nip</text>" in picture


def test_thirty_groups_look_different():
    assert len({look_of(place) for place in range(30)}) == 30


def test_manually_written_parts_of_a_document_are_preserved(sweep, tmp_path):
    comparison = compare_runs(sweep, title="Wins", options=QUICK)
    page = tmp_path / "docs" / "wins.md"
    write_document(comparison, page)
    assert page.read_text().startswith(f"# Wins\n\n{BEGIN}\n")
    assert page.with_suffix(".svg").exists()
    page.write_text(f"# My own\nbefore\n{BEGIN}\nstale\n{END}\nafter\n")
    write_document(comparison, page)
    text = page.read_text()
    assert text.startswith(f"# My own\nbefore\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "stale" not in text
    assert "![Wins](wins.svg)" in text
    write_document(comparison, page)
    assert page.read_text() == text
    page.write_text("no marks")
    with pytest.raises(DataError, match="once each, in this order"):
        write_document(comparison, page)
    assert page.read_text() == "no marks"


def test_a_document_with_its_main_table_has_the_others_in_its_json_file(sweep, tmp_path):
    comparison = compare_runs(sweep, title="Wins", options=QUICK)
    page = tmp_path / "wins.md"
    page.write_text(f"{BEGIN_MAIN}\n{END}\nafter\n")
    write_document(comparison, page)
    text, tables = page.read_text(), read_published(page.with_suffix(".json")).tables
    assert text.startswith(f"{BEGIN_MAIN}\n\n")
    assert text.endswith(f"{FURTHER}\n\n{END}\nafter\n")
    assert text.count("\n## ") == 1
    assert "P(row better than column)" not in text
    complete = to_markdown(comparison, "wins.svg", heading=False)
    assert complete in text.replace(FURTHER, "\n".join(tables))
    page.write_text(f"{BEGIN}\n{END}\n")
    write_document(comparison, page)
    assert complete in page.read_text()
    assert read_published(page.with_suffix(".json")).tables == []


def test_seeds_are_written_as_ranges():
    assert [ranges([0, 1, 2, 3, 4]), ranges([3]), ranges([0, 2, 3, 9])] == [
        "0–4",
        "3",
        "0, 2–3, 9",
    ]


def test_reference_values_hold_for_the_test_set_only_and_panels_are_wrapped(sweep):
    names = ["test", "test-by-sampling", "test-large", "test-larger"]
    for folder in sweep:
        for name in names[1:]:
            folder.write_table(table(name, 5))
    lines = reference_values(["chance=0.5"])
    comparison = compare_runs(sweep, lines=lines, options=QUICK)
    found = [by_name(comparison, name) for name in names]
    assert [bool(comparison.lines_of(each)) for each in found] == [True, True, False, False]
    assert to_markdown(comparison).count("Known values, drawn as lines") == 2
    height = r'height="([\d.]+)pt"'
    (one_row,) = re.findall(height, draw_svg(replace(comparison, metrics=found[:3])))
    (two_rows,) = re.findall(height, draw_svg(replace(comparison, metrics=found)))
    assert float(two_rows) > 1.3 * float(one_row)


def test_reference_values_are_drawn_as_lines(sweep):
    lines = reference_values(["exact bound=0.936", "chance=0.5"])
    comparison = compare_runs(sweep, lines=lines, options=QUICK)
    assert "Known values, drawn as lines: chance 50.0; exact bound 93.6." in to_markdown(comparison)
    assert to_data(comparison)["lines"][1] == {"label": "exact bound", "value": 0.936}
    picture = draw_svg(comparison)
    assert "exact bound" in picture
    top = float(
        re.search(
            r'id="patch_2">\s*<path d="M [\d.]+ [\d.]+ \nL [\d.]+ [\d.]+ \nL [\d.]+ ([\d.]+)',
            picture,
        )[1]
    )
    heights = [
        float(re.search(rf' y="([\d.]+)"[^>]*>{label}', picture)[1])
        for label in ("exact bound", "chance")
    ]
    assert max(heights) < top  # above the axes: no label covers data
    assert abs(heights[0] - heights[1]) > 7  # nor another label
    assert "exact bound" not in draw_svg(compare_runs(sweep, options=QUICK))


@pytest.mark.parametrize("text", ["bound", "=0.5", "bound=high", "bound=93.6", "bound=nan"])
def test_a_reference_value_must_be_an_accuracy_with_a_label(text):
    with pytest.raises(ParameterError, match=rf"got '{text}', expected LABEL=VALUE"):
        reference_values([text])


def test_the_picture_contains_learning_curves(sweep):
    comparison = compare_runs(sweep, options=QUICK)
    assert comparison.learning
    assert "IQM and band" in draw_svg(comparison)
