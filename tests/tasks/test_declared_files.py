"""Files that users declare count as code of the stages that run custom code."""

from __future__ import annotations

import pytest

from ratchet.errors import ParameterError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.identity import parameters_digest
from tasks.stages.families import make_keys
from tests.tasks.phased import PARAMETERS

TRAINER = """
from pathlib import Path
from trainers.tensordict.vanilla_ppo import VanillaPpoTrainer

class Mine(VanillaPpoTrainer):
    {reads}

    def _get_loss_module_and_gae(self):
        self.prompts = [each.read_text() for each in Path(__file__).parent.glob("prompts/*")]
        return super()._get_loss_module_and_gae()
"""
STAGES = ("build_scenario", "initial_state", "train", "test")


def digests(folder, **changes):
    content = {**PARAMETERS, "rl": {"num_iterations": 1}, "trainer": "mine.py:Mine", **changes}
    keys = make_keys("main", HyperParameters.from_dict(content, folder), base_dir=str(folder))
    return {
        stage: keys.fingerprint(stage, keys._parameters(stage, 0, "test")).digest
        for stage in STAGES
    }


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(TRAINER.format(reads="pass"))
    (tmp_path / "prompts" / "deep").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "deep/c.txt"):
        (tmp_path / "prompts" / name).write_text(name)
    return tmp_path


def changed(before, after):
    return {stage for stage in STAGES if before[stage] != after[stage]}


def test_an_experiments_files_count_in_stages_that_run_custom_code(folder):
    files = ["prompts/*.txt", "prompts/deep/c.txt"]
    before = digests(folder, files=files)
    assert changed(digests(folder), before) == {"initial_state", "train", "test"}
    for name in ("a.txt", "deep/c.txt"):
        (folder / "prompts" / name).write_text("changed")
        after = digests(folder, files=files)
        assert changed(before, after) == {"initial_state", "train", "test"}
        before = after
    (folder / "prompts" / "d.txt").write_text("new")
    assert changed(before, digests(folder, files=files))
    before = digests(folder, files=files)
    (folder / "other.txt").write_text("new")
    assert not changed(before, digests(folder, files=files))


def test_a_class_declares_what_it_reads(folder):
    (folder / "mine.py").write_text(TRAINER.format(reads="reads = ('prompts/**/*.txt',)"))
    before = digests(folder)
    (folder / "prompts" / "deep" / "c.txt").write_text("changed")
    assert changed(before, digests(folder)) == {"initial_state", "train", "test"}


def test_files_do_not_count_without_custom_code(folder):
    plain = {"trainer": "vanilla_ppo"}
    assert not changed(digests(folder, **plain), digests(folder, **plain, files=["mine.py"]))


def test_a_pattern_without_a_file_is_refused(folder):
    with pytest.raises(ParameterError, match=r"files: 'promts/\*' matches no file in .*Correct it"):
        digests(folder, files=["promts/*"])
    (folder / "mine.py").write_text(TRAINER.format(reads="reads = 'table.json'"))
    with pytest.raises(ParameterError, match=r"Mine\.reads: 'table\.json' matches no file"):
        digests(folder)


def test_declared_files_are_parameters_only_if_there_are_some():
    plain = HyperParameters.from_dict({**PARAMETERS})
    assert "files" not in plain.to_dict()
    declared = HyperParameters.from_dict({**PARAMETERS, "files": ["a.txt"]})
    assert declared.to_dict()["files"] == ["a.txt"]
    assert HyperParameters.from_dict(declared.to_dict()) == declared
    assert parameters_digest({"main": declared}) != parameters_digest({"main": plain})
