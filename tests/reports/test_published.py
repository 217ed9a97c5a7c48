"""Published results: their content, and comparisons with other runs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ratchet.errors import DataError
from ratchet.reports.comparison.comparing import compare_runs
from ratchet.reports.comparison.files import write_document
from ratchet.reports.comparison.options import Options
from ratchet.reports.comparison.published import (
    check_published,
    different_versions,
    read_published,
    unrecorded_versions,
)
from tests.reports.made_runs import hyper_params, make_run, make_sweep, table

QUICK = Options(num_resamples=200)


@pytest.fixture
def page(tmp_path):
    """Publish two protocols with three seeds each."""
    comparison = compare_runs(make_sweep(tmp_path / "runs"), title="Wins", options=QUICK)
    write_document(comparison, tmp_path / "wins.md")
    return tmp_path / "wins.json"


def test_each_run_is_published_with_its_differing_parameters(page):
    published = read_published(page)
    assert [(r.run, r.experiment, r.arm, r.seed) for r in published.runs] == [
        (f"{protocol}-{seed}", "made", "main", seed)
        for protocol in ("adp", "nip")
        for seed in range(3)
    ]
    assert published.runs[4].differing == {"interaction_protocol": "nip"}
    assert [r.tests["test"].accuracy for r in published.runs] == [0.5, 0.6, 0.7, 0.8, 0.9, 0.9]
    assert published.runs[0].tests["test"].rows == 60


def test_a_repeated_run_has_the_published_decisions_regardless_of_its_id(page, tmp_path):
    again = make_run(tmp_path / "other", "mine", 9, interaction_protocol="nip", seed=2)
    (run,) = check_published(again, read_published(page))
    assert not run.not_compared
    assert {value.kind for value in run.values} == {"score", "data set", "learning curve"}
    assert [v.name for v in run.values if not v.is_same] == ["train/verifier.accuracy"]  # by the id
    (checked,) = run.tests
    assert str(checked).startswith("test of arm main with the seed 2, 90.00 % of 60 rows, ")


def test_different_decisions_with_the_same_accuracy_are_detected(page, tmp_path):
    again = make_run(tmp_path / "other", "mine", 9, interaction_protocol="nip", seed=2)
    other = table("test", 9)
    for name in ("decision", "correct"):
        other.columns[name].reverse()
    again.write_table(other)
    (run,) = check_published(again, read_published(page))
    assert not run.is_same
    (checked,) = run.tests
    assert checked.here.accuracy == checked.published.accuracy


def test_a_test_that_was_not_repeated_is_missing(page, tmp_path):
    given = json.loads(page.read_text())
    given["runs"][0]["tests"]["test-hard"] = given["runs"][0]["tests"]["test"]
    page.write_text(json.dumps(given))
    again = make_run(tmp_path / "other", "mine", 5, interaction_protocol="adp", seed=0)
    (run,) = check_published(again, read_published(page))
    same, missing = run.tests
    assert same.is_same
    assert not run.is_same
    assert missing.here is None
    assert not missing.is_same


@pytest.mark.parametrize("changes", [{"seed": 3}, {"interaction_protocol": "debate"}])
def test_a_run_of_a_different_experiment_is_refused(page, tmp_path, changes):
    other = make_run(tmp_path / "other", "mine", 9, **{"interaction_protocol": "nip", **changes})
    with pytest.raises(DataError, match="expected one of the published experiments"):
        check_published(other, read_published(page))


def test_arms_are_distinguished_by_their_names(tmp_path):
    folders = make_sweep(tmp_path / "runs", protocols=("adp",), rights=((5, 6),))
    for folder in folders:
        adp = folder.manifest.arms["main"]
        nip = hyper_params(interaction_protocol="nip", seed=adp["seed"]).to_dict()
        hashes = folder.manifest.dataset_hashes
        folder.update(
            arms={"main": adp, "nip": nip}, dataset_hashes={**hashes, "nip": hashes["main"]}
        )
        folder.write_table(replace(table("test", 9), arm="nip"))
    comparison = compare_runs(folders, by_arm=True, options=QUICK)
    write_document(comparison, tmp_path / "arms.md")
    published = read_published(tmp_path / "arms.json")
    assert {run.arm for run in published.runs} == {"main", "nip"}
    assert all(run.differing == {} for run in published.runs)


def test_differing_versions_are_reported(page):
    published = read_published(page).model_copy(
        update={"versions": {"torch": "2.13.0", "platform": "Linux-1", "numpy": "2.4"}}
    )
    here = {"torch": "2.14.0", "platform": "Linux-2", "numpy": "2.4"}
    assert different_versions(published, here) == ["torch 2.13.0, here 2.14.0"]
    assert unrecorded_versions(published, {**here, "processor model": "family 6"}) == [
        "processor model family 6"
    ]


def leaves(content, path=()):
    """Iterate over the paths of numbers and digests in a run's published results."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, name))
        elif path:
            yield (*path, name)


def test_every_altered_number_and_digest_is_detected(page, tmp_path):
    again = make_run(tmp_path / "other", "adp-0", 5, interaction_protocol="adp", seed=0)
    (run,) = check_published(again, read_published(page))
    assert run.is_same
    content = json.loads(page.read_text())
    content["runs"][0]["used"] = {"train": {"frames": 5.0}}
    paths = [path for path in leaves(content["runs"][0]) if path[0] != "differing"]
    assert {path[0] for path in paths} == {"tests", "scores", "used", "data", "curves"}
    for *parents, name in paths:
        altered = json.loads(page.read_text())
        entry = altered["runs"][0]
        if parents[0] == "used":
            entry["used"] = {"train": {"frames": 4.0}}
        for parent in parents:
            entry = entry[parent]
        value = entry[name]
        entry[name] = value[::-1] + "x" if isinstance(value, str) else value + 1
        (tmp_path / "altered.json").write_text(json.dumps(altered))
        (run,) = check_published(again, read_published(tmp_path / "altered.json"))
        assert not run.is_same, (*parents, name)


def test_values_that_an_older_file_lacks_are_not_compared(page, tmp_path):
    again = make_run(tmp_path / "other", "adp-0", 5, interaction_protocol="adp", seed=0)
    content = json.loads(page.read_text())
    for run in content["runs"]:
        for name in ("scores", "used", "data", "curves"):
            del run[name]
    page.write_text(json.dumps(content))
    (run,) = check_published(again, read_published(page))
    assert run.is_same
    assert run.not_compared == ["score", "used in training", "data set", "learning curve"]


def test_files_without_results_are_refused(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(DataError, match=r"cannot be read \(.+ for a page of results"):
            read_published(path)
    (tmp_path / "other.json").write_text('{"runs": 3}')
    with pytest.raises(DataError, match="expected results as `ratchet compare --update-page`"):
        read_published(tmp_path / "other.json")
