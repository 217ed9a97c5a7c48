"""The key of a suite's stage contains the inputs of its result; other keys do not change."""

from __future__ import annotations

import pytest

from ratchet.errors import ParameterError
from ratchet.parameters.hyper_parameters import HyperParameters
from tasks.language.keys import LanguageArmKeys
from tasks.stages.sequence import RecordedStageLayout, flatten_steps
from trainers.compatibility import check_combination

CHOSEN = {
    "scenario": "language_task",
    "dataset": "reverse",
    "trainer": "grpo",
    "rl": {"num_iterations": 4},
    "language": {"validate_every": 2},
    "language_task": {"num_validation": 10},
}
TASK = "from inspect_ai import task\nfrom words import WORDS\n\n@task\ndef spelling():\n    ...\n"
SUITE = {"task": "spelling.py@spelling"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write a task with its imports and data files; set installed versions."""
    (tmp_path / "spelling.py").write_text(TASK)
    (tmp_path / "words.py").write_text("WORDS = 1\n")
    (tmp_path / "words.txt").write_text("one\n")
    asked = "ratchet.language_models.suites.resolution.find_versions"
    monkeypatch.setattr(asked, lambda *_: {"inspect-ai": "0.3.69", "openai": "3.52.0"})
    return tmp_path


def make_keys(folder, *, python=None, **suites):
    given = HyperParameters(**CHOSEN, evaluation={"suites": suites, "python": python})
    return LanguageArmKeys("main", given, base_dir=str(folder))


def calls(keys):
    stops = [("train", 2), ("train", 4)]
    return [(c.name, c.iteration) for c in flatten_steps(keys.stages(RecordedStageLayout(stops)))]


def key(folder, **changes):
    return make_keys(folder, spelling={**SUITE, **changes}).suite("spelling", 4).key


def test_suites_run_after_training_or_with_each_validation(folder):
    keys = make_keys(folder, often={**SUITE, "when": "validate"}, last=SUITE)
    found = [each for each in calls(keys) if each[0].startswith("suite")]
    assert found == [("suite-often", 0), ("suite-often", 2), ("suite-often", 4), ("suite-last", 4)]


def test_a_suite_does_not_enter_other_keys(folder):
    bare = {c.name: c.key for c in flatten_steps(make_keys(folder).stages(RecordedStageLayout([])))}
    with_one = make_keys(folder, spelling=SUITE)
    found = {c.name: c.key for c in flatten_steps(with_one.stages(RecordedStageLayout([])))}
    assert found.pop("suite-spelling")
    assert found == bare


def test_parameters_of_a_suites_answers_enter_its_key(folder):
    first = key(folder)
    changes = [{"limit": 3}, {"temperature": 0.5}, {"max_tokens": 7}, {"arguments": {"a": 1}}]
    (folder / "spelling.py").write_text(TASK.replace("():", "(a=0):"))
    keys = [key(folder, **change) for change in ({}, *changes)]
    assert len({first, *keys}) == 6
    assert key(folder, max_connections=1) == key(folder) == key(folder, when="validate")
    renamed = make_keys(folder, other=SUITE).suite("other", 4).key
    assert renamed == key(folder), "the name does not affect answers"
    assert make_keys(folder, spelling=SUITE).suite("spelling", 2).key != key(folder)


def test_code_imports_and_files_of_a_suite_enter_its_key(folder):
    found = [key(folder), key(folder, files=["words.txt"])]
    (folder / "words.txt").write_text("two\n")
    found += [key(folder, files=["words.txt"]), key(folder, files=["."])]
    (folder / "words.py").write_text("WORDS = 2\n")
    found += [key(folder)]
    assert len(set(found)) == 5
    moved = folder / "moved"
    moved.mkdir()
    for name in ("spelling.py", "words.py"):
        (moved / name).write_text((folder / name).read_text())
    assert key(moved) == key(folder), "the path does not enter the key"
    with pytest.raises(ParameterError, match=r"nothing.txt does not exist"):
        key(folder, files=["nothing.txt"])


def test_installed_versions_enter_the_key_of_a_suite(folder, monkeypatch):
    before = key(folder)
    asked = "ratchet.language_models.suites.resolution.find_versions"
    monkeypatch.setattr(asked, lambda *_: {"inspect-ai": "0.3.70", "openai": "3.52.0"})
    assert key(folder) != before


def test_suites_that_could_never_run_are_refused():
    def check(**changes):
        check_combination(HyperParameters(**{**CHOSEN, **changes}))

    suites = {"spelling": {**SUITE, "when": "validate"}}
    check(evaluation={"suites": suites})
    with pytest.raises(ParameterError, match=r"suites.spelling.when: .*without language.validate"):
        check(evaluation={"suites": suites}, language={})
    networks = {"scenario": "graph_isomorphism", "dataset": "generated", "trainer": "vanilla_ppo"}
    with pytest.raises(ParameterError, match=r"got spelling with the trainer 'vanilla_ppo'"):
        check_combination(HyperParameters(**networks, evaluation={"suites": suites}))
