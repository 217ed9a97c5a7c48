"""A study's file is read with errors that name the file, the key, its value and the expectation."""

from __future__ import annotations

import pytest

from ratchet.errors import ParameterError
from ratchet.experiment_files.study_file import load_study, read_study

STUDY = {"title": "T", "experiment": "../e.yaml", "run": {"seeds": "5..7"}, "page": "docs/t.md"}
SEARCH = {"title": "S", "page": "docs/s.md", "seeds": "0..1", "values": {"rl.lr": [0.1, 0.2]}}


def test_seeds_are_ranges_numbers_or_lists():
    assert [
        read_study({**STUDY, "run": {"seeds": seeds}}, "s.yaml").run.seeds
        for seeds in ("5..7", 5, [7, 5], ["1..2", 9])
    ] == [[5, 6, 7], [5], [5, 7], [1, 2, 9]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"titel": 1}, "titel: unknown parameter .value 1.. Did you mean 'title'"),
        ({"run": {}}, "run.seeds: missing"),
        ({"run": {"seeds": "x"}}, r"run\.seeds\.0: got 'x'"),
        ({"compare": {"x_axis": "time"}}, "compare.x_axis: got 'time'.*'frames'"),
        ({"compare": {"pairs": ["a"]}}, "compare.pairs.0: got 'a'.*FIRST vs SECOND"),
        ({"compare": {"pairs": ["a vs b"], "baselines": ["a"]}}, "baselines or pairs, got both"),
        ({"compare": {"references": {"known": 90}}}, "references.known: got 90"),
        ({"search": [{**SEARCH, "values": {"a": [1]}}]}, r"search\.0\.values\.a: got \[1\]"),
        ({"search": [{**SEARCH, "seeds": "7..8"}]}, r"search.0.seeds: got \[7\], which are also"),
        ({"search": [{**SEARCH, "against": 3}]}, "against: got 3, expected one of the values"),
        (
            {"search": [{**SEARCH, "choose": {"rule": "smallest_within"}}]},
            "search.0.choose: .*expected `points`",
        ),
        ({"after": [{"title": "A", "page": "a.md"}]}, "after.0.name: missing"),
    ],
)
def test_mistakes_are_named(changes, message):
    with pytest.raises(ParameterError, match=rf"(?s)s\.yaml:\n.*{message}"):
        read_study({**STUDY, **changes}, "s.yaml")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ParameterError, match=r"x\.yaml: no such file, expected a study's file"):
        load_study(tmp_path / "x.yaml")


def test_files_next_to_a_study(tmp_path):
    file = tmp_path / "studies" / "tiny.yaml"
    file.parent.mkdir()
    file.write_text("{title: T, experiment: ../e.yaml, run: {seeds: 5..7}, page: docs/t.md}\n")
    study = load_study(file)
    assert study.name == "tiny"
    assert study.experiment.resolve() == tmp_path / "e.yaml"
    assert study.lock == file.with_name("tiny.lock")
    assert str(study.data) == "docs/t.json"
    assert str(study.attack_data) == "docs/attacks/t.json"
