"""Keys of stages contain the code of their tasks, and no infrastructure.

Sources are edited in memory: the keys of small experiments are computed as if the files differed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.shadowing import ROOT
from ratchet.store import source_cache
from ratchet.store.infrastructure import INFRASTRUCTURE, is_infrastructure
from ratchet.store.sources import read_facts
from tasks.stages.families import make_keys
from tasks.stages.keys import BaseKeys
from tests.tasks.naive_trainers import FAMILIES, LANGUAGE
from tests.tasks.phased import PARAMETERS

EXPERIMENTS = {
    "networks": {**PARAMETERS, "rl": {"num_iterations": 1}},
    "language": {**LANGUAGE, "trainer": "grpo", "rl": {"num_iterations": 1}},
    "chat": {**FAMILIES["chat"][1], "trainer": "pure_text_ei", "rl": {"num_iterations": 2}},
}
STAGES = {
    "networks": ("build_scenario", "initial_state", "train", "rollouts", "test"),
    "language": ("build_scenario", "initial_state", "rollouts", "train", "validate", "test"),
    "chat": ("build_scenario", "initial_state", "sample_rollouts", "log_stats", "test"),
}


def keys_of(family: str) -> BaseKeys:
    return make_keys("main", HyperParameters(**EXPERIMENTS[family]))


def digests(family: str) -> dict[str, str]:
    """Return the code digest of each kind of stage."""
    keys = keys_of(family)
    return {
        stage: keys.fingerprint(stage, keys._parameters(stage, 0, "test")).digest
        for stage in STAGES[family]
    }


@pytest.fixture
def edit(monkeypatch):
    """Let sources be read with an edit, given as a function of path and text."""
    original = source_cache._read_current

    def apply(change):
        def read(path: Path):
            text = path.read_text()
            changed = change(path, text)
            return original(path) if changed == text else read_facts(changed.encode())

        monkeypatch.setattr(source_cache, "_read_current", read)
        monkeypatch.setattr(source_cache, "_BY_SPEC", {})

    return apply


def _module(path: Path) -> str:
    if not path.is_relative_to(ROOT):
        return ""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


@pytest.mark.parametrize("family", EXPERIMENTS)
def test_edits_of_infrastructure_change_no_key(family, edit):
    before, edited = digests(family), set()

    def change(path: Path, text: str) -> str:
        if not is_infrastructure(_module(path)):
            return text
        edited.add(_module(path))
        return text + "\nNEW = 1\nprint(NEW)\n\n\ndef new(x):\n    raise ValueError(x + NEW)\n"

    edit(change)
    assert digests(family) == before
    assert len(edited) > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "file", "old", "new", "changed"),
    [
        (
            "networks",
            "tasks/tensordict/stages.py",
            "metrics = trainer.run_iterations(start, stop)",
            "metrics = trainer.run_iterations(start, stop + 1)",
            {"train"},
        ),
        (
            "networks",
            "tasks/tensordict/session.py",
            "staged.load_state(",
            "staged.load_state_of(",
            {"train", "rollouts", "test"},
        ),
        (
            "language",
            "tasks/language/stages.py",
            "metrics = trainer.run_iterations(start, stop)",
            "metrics = trainer.run_iterations(start, stop + 1)",
            {"train"},
        ),
    ],
)
def test_an_edit_of_a_task_changes_the_keys_of_its_stages(family, file, old, new, changed, edit):
    before, path = digests(family), ROOT / file
    assert old in path.read_text()
    edit(lambda each, text: text.replace(old, new) if each == path else text)
    after = digests(family)
    assert {stage for stage in before if before[stage] != after[stage]} == changed


def test_rollouts_sampled_while_training_contain_the_code_that_samples_them():
    ahead = {**EXPERIMENTS["language"], "language": {"mode": "one_step_behind"}}
    found = {}
    for name, parameters in (("plain", EXPERIMENTS["language"]), ("ahead", ahead)):
        keys = make_keys("main", HyperParameters(**parameters))
        found[name] = keys.fingerprint("rollouts", keys._parameters("rollouts", 0, ""))
    assert found["ahead"].digest != found["plain"].digest
    assert "trainers.language.rollout_worker_main" in found["ahead"].modules


def test_infrastructure_exists_and_names_nothing_twice():
    for name in INFRASTRUCTURE:
        path = ROOT.joinpath(*name.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file(), name
        assert not any(name.startswith(f"{other}.") for other in INFRASTRUCTURE), name
