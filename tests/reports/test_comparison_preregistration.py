"""A comparison shows its sweep's preregistration, uses its groups, and names differences."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from ratchet.reports.comparison.comparing import compare_runs
from ratchet.reports.comparison.files import render, to_data, write_document
from ratchet.reports.comparison.options import Options
from ratchet.reports.comparison.preregistration import preregistration_note
from ratchet.reports.comparison.published import read_published
from ratchet.reports.comparison.text import to_markdown
from ratchet.tracking.environment import CodeState
from ratchet.tracking.preregistration import Preregistration, PreregistrationRecord
from tests.reports.made_runs import make_sweep

PROTOCOLS = ("adp", "nip", "mnip")
RIGHTS = ((5, 6, 7), (8, 9, 9), (1, 2, 3))
COMMIT = "c0ffee" * 7


@pytest.fixture
def folders(tmp_path):
    return make_sweep(tmp_path / "runs", rights=RIGHTS, protocols=PROTOCOLS)


def record(folders, *, dirty=False, **content):
    registered = Preregistration(**{"seeds": [0, 1, 2], **content})
    return PreregistrationRecord(
        content=registered,
        registered=datetime(2026, 11, 27, 2, 31, 5, tzinfo=UTC),
        code=CodeState(commit=COMMIT, dirty=dirty),
        digest=registered.digest(folder.run_id for folder in folders),
    )


def compared(folders, registered, **given):
    options = Options(num_resamples=100, **given.pop("options", {}))
    return compare_runs(folders, options=options, preregistered=registered, **given)


def pairs(comparison):
    return [(pair.first, pair.second) for pair in comparison.metrics[0].pairs]


def test_it_is_shown_and_its_baselines_are_used(folders, tmp_path):
    registered = record(folders, baselines=["nip"], hypothesis="nip is\n  better")
    comparison = compared(folders, registered)
    assert pairs(comparison) == [("adp", "nip"), ("mnip", "nip")]
    note = (
        "Preregistered on 2026-11-27 02:31 UTC at commit c0ffeec0ffee, before the first run (digest"
        f" {registered.digest}): accuracy; seeds 0–2; each group with nip. Hypothesis: nip is"
        " better"
    )
    assert preregistration_note(comparison) == note
    assert f"## How to read it\n- {note}\n" in to_markdown(comparison)
    assert f"<li>{note}</li>" in render(comparison, "<svg/>")
    data = to_data(comparison)["preregistered"]
    assert (data["digest"], data["differences"]) == (registered.digest, [])
    write_document(comparison, tmp_path / "page.md")
    published = read_published(tmp_path / "page.json").preregistered
    assert published.content == registered.content
    assert published.registered == registered.registered
    assert published.differences == []


def test_pairs_are_used_and_options_override_them(folders):
    registered = record(folders, pairs=["adp vs mnip"])
    assert pairs(compared(folders, registered)) == [("adp", "mnip")]
    comparison = compared(folders, registered, options={"baselines": ["adp"]})
    assert pairs(comparison) == [("nip", "adp"), ("mnip", "adp")]
    assert preregistration_note(comparison).endswith(
        ": accuracy; seeds 0–2; adp vs mnip, and this comparison differs: each group with adp."
    )


def test_a_comparison_without_a_preregistration_says_nothing(folders, tmp_path):
    comparison = compared(folders, None)
    assert preregistration_note(comparison) == ""
    assert "reregistered" not in to_markdown(comparison)
    assert to_data(comparison)["preregistered"] is None
    write_document(comparison, tmp_path / "page.md")
    page = tmp_path / "page.json"
    data = json.loads(page.read_text())
    del data["preregistered"]
    page.write_text(json.dumps(data))
    assert read_published(page).preregistered is None


def test_differences_are_named(folders):
    def differences(registered, runs=folders, **given):
        return compared(runs, registered, **given).preregistered.differences

    changed = "parameters or members changed after the preregistration"
    plain = record(folders)
    assert differences(plain) == []
    assert differences(record(folders, metrics=["test/x"])) == ["no metric test/x"]
    length = record(folders, metrics=["accuracy", "test/mean_episode_length"])
    assert differences(length, metrics=["test/mean_episode_length"]) == []
    more = record(folders, seeds=[0, 1, 2, 3])
    assert differences(more) == ["seeds 0–2 of adp, nip, mnip"]
    assert differences(plain, runs=folders[:-1]) == ["seeds 0–1 of mnip", changed]
    assert differences(record(folders[1:])) == [changed]
    missing = record(folders, baselines=["nip", "debate"])
    assert differences(missing) == ["no group debate"]
    assert differences(record(folders, baselines=["debate"])) == ["no group debate", "all pairs"]
    folders[-1].set_status("failed", "by hand")
    assert differences(plain, skip_unfinished=True) == ["seeds 0–1 of mnip"]


def test_many_pairs_are_counted_and_uncommitted_changes_are_marked(folders):
    every = [f"{one} vs {two}" for one in PROTOCOLS for two in PROTOCOLS if one != two]
    note = preregistration_note(compared(folders, record(folders, dirty=True, pairs=every)))
    assert note.endswith("; 6 named pairs.")
    assert "at commit c0ffeec0ffee+, before" in note
