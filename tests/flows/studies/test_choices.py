"""Values are chosen by a study's rule from published results, and stored in the lock file."""

from __future__ import annotations

import pytest

from flows.studies.choices import (
    Lock,
    changed_files,
    choose,
    read_lock,
    register,
    write_lock,
)
from ratchet.errors import DataError, ParameterError
from ratchet.experiment_files.study_file import SearchSection, StudyFile, read_study
from ratchet.reports.comparison.published import Published

FACTOR = "agents._default.agent_lr_factor"
FACTORS = [{"actor": f, "critic": f} for f in (0.3, 1, 3)]
EXPERIMENT = "{scenario: graph_isomorphism, trainer: vanilla_ppo, dataset: generated}"
STUDY = {"title": "T", "experiment": "e.yaml", "run": {"seeds": "5..7"}, "page": "docs/t.md"}


def search(**changes):
    content = {"title": "S", "page": "s.md", "seeds": "0..1", "values": {FACTOR: FACTORS}}
    return SearchSection.model_validate({**content, **changes})


def published(scores):
    """Return results: arm → one list of scores for each factor."""
    runs = [
        {
            **{"run": "r", "experiment": "e", "arm": arm, "seed": seed, "tests": {}},
            "differing": {f"{FACTOR}.{part}": factor[part] for part in factor},
            "scores": {"test": score, "test/test_trust": 1 - score},
        }
        for arm, lists in scores.items()
        for factor, by_seed in zip(FACTORS, lists, strict=True)
        for seed, score in enumerate(by_seed)
    ]
    return Published.model_validate({"commands": [], "versions": {}, "runs": runs})


CLOSE = published(
    {
        "main": [[0.8, 0.9], [0.8495, 0.8495], [0.7, 1.0]],
        "adp": [[0.1, 0.1], [0.1, 0.1], [0.9, 0.8]],
    }
)


def chosen(results=CLOSE, **changes):
    choices = choose(search(**changes), results)
    return {arm: values[FACTOR]["actor"] for arm, values in choices.items()}


def test_each_arm_has_its_highest_mean_and_the_first_of_equal_ones():
    assert chosen() == {"main": 0.3, "adp": 3}


def test_a_preferred_value_wins_only_among_equal_means():
    assert chosen(choose={"prefer": FACTORS[2]}) == {"main": 3, "adp": 3}
    assert chosen(choose={"prefer": FACTORS[1]}) == {"main": 0.3, "adp": 3}


def test_the_smallest_value_within_some_points_of_the_highest():
    rule = {"rule": "smallest_within", "points": 5}
    higher = published({"main": [[0.8, 0.8], [0.86, 0.86], [0.9, 0.9]]})
    assert chosen(higher, choose=rule) == {"main": 1}
    assert chosen(higher, choose={**rule, "points": 10}) == {"main": 0.3}
    assert chosen(higher, choose={**rule, "points": 0}) == {"main": 3}


def test_all_arms_may_share_a_choice():
    assert chosen(choose={"per": "study"}) == {"main": 3, "adp": 3}


def test_some_arms_may_be_searched_and_others_follow():
    assert chosen(arms=["adp"], choose={"follow": {"adp_attacked": "adp"}}) == {
        "adp": 3,
        "adp_attacked": 3,
    }


def test_another_metric_may_decide():
    assert chosen(choose={"metric": "test/test_trust"})["adp"] == 0.3


def test_an_incomplete_search_is_refused():
    with pytest.raises(DataError, match=r"s\.json: arm main has \[1, 2\] scores .* expected 2"):
        chosen(published({"main": [[0.8], [0.8, 0.8], [0.9, 0.9]]}))
    with pytest.raises(DataError, match="arm nip has "):
        chosen(arms=["nip"])


def test_values_without_an_order_have_no_smallest():
    rule = {"rule": "smallest_within", "points": 100}
    values = {"values": {FACTOR: [{"actor": "a"}, *FACTORS]}}
    with pytest.raises((ParameterError, DataError)):
        choose(search(choose=rule, **values), CLOSE)


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "tiny.yaml"
    page = str(tmp_path / "docs" / "t.md")
    (tmp_path / "e.yaml").write_text(EXPERIMENT)
    return StudyFile(path, read_study({**STUDY, "page": page}, str(path)))


def test_choices_are_stored_and_merged(study):
    lock = Lock(choices={"a.md": {"main": {"rl.lr": 0.1}}, "b.md": {"main": {FACTOR: FACTORS[0]}}})
    write_lock(study, lock)
    assert read_lock(study) == lock
    assert read_lock(study).all_choices == {"main": {"rl.lr": 0.1, FACTOR: FACTORS[0]}}


def test_a_study_is_registered_once(study):
    assert read_lock(study) == Lock()
    first = register(study)
    assert changed_files(study, first) == []
    assert register(study) == first
    changed = {**STUDY, "run": {"seeds": "5..8"}}
    changed_study = StudyFile(study.path, read_study(changed, "tiny.yaml"))
    assert register(changed_study) == first
    titled = StudyFile(study.path, read_study({**STUDY, "title": "U", "claims": ["1 > 0"]}, ""))
    assert changed_files(titled, first) == []
    assert changed_files(changed_study, first) == [study.path]


def test_a_changed_experiment_is_named(study):
    first = register(study)
    study.experiment.write_text("# the same\n" + EXPERIMENT)
    assert changed_files(study, first) == []
    study.experiment.write_text(EXPERIMENT.replace("}", ", arms: {fast: {rl.lr: 0.1}}}"))
    assert changed_files(study, first) == [study.experiment]
    earlier = first.model_copy(update={"parameters": None})
    assert changed_files(study, earlier) == []


def test_a_study_with_results_is_not_registered_afterwards(study):
    study.data.parent.mkdir()
    study.data.write_text("{}")
    assert register(study) is None
    assert not study.lock.exists()


def test_a_damaged_lock_is_named(study):
    study.lock.write_text("choice: {}\n")
    with pytest.raises(ParameterError, match=r"(?s)tiny\.lock:.*Did you mean 'choices'.*Remove"):
        read_lock(study)
