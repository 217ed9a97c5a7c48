"""Files that custom code reads although no key contains them are noted in the stage's folder."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from pathlib import Path

import pytest

from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.store import StageStore
from tasks.stages.driver import run_stages
from tasks.stages.families import make_keys
from tasks.stages.undeclared_files import NOTED_FILE, changed_files, read_noted_files
from tasks.tensordict.session import ArmSession
from tests.tasks.phased import PARAMETERS

TRAINER = """
import json
from importlib import import_module
from pathlib import Path
import subprocess, sys
from trainers.tensordict.vanilla_ppo import VanillaPpoTrainer
from .helper import OFFSET

HERE = Path(__file__).parent
TABLE = json.loads((HERE / "named.json").read_text())
RATES = json.loads(Path(__file__).with_suffix(".json").read_text())

WORKER = "import sys; import ratchet.lazy; [open(path).close() for path in sys.argv[1:]]"

class Mine(VanillaPpoTrainer):
    {reads}

    def _get_loss_module_and_gae(self):
        for path in sorted(HERE.glob("prompts/*")):
            path.read_text()
        levels = [str(HERE / f"level-{{index}}.txt") for index in range(2)]
        subprocess.run([sys.executable, "-c", WORKER, *levels], check=True)
        (HERE / f"written{{OFFSET}}.txt").write_text("1")
        (HERE / f"written{{OFFSET}}.txt").read_text()
        exec((HERE / f"more{{OFFSET}}.py").read_text())
        (HERE / ".hidden").read_text()
        return super()._get_loss_module_and_gae()
"""
FILES = {
    "named.json": "{}",
    "mine.json": "{}",
    "helper.py": "OFFSET = 1",
    "more1.py": "x = 1",
    "level-0.txt": "0",
    "level-1.txt": "1",
    "prompts/a.txt": "a",
    "prompts/b.txt": "b",
    ".hidden": "",
}
UNDECLARED = {"mine.json", "more1.py", "level-0.txt", "level-1.txt", "prompts/a.txt"} | {
    "prompts/b.txt"
}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "experiment"
    (folder / "prompts").mkdir(parents=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "mine.py").write_text(TRAINER.format(reads="pass"))
    return folder


class Arm:
    """An arm whose stages are executed in this process, with its folders in the experiment's."""

    def __init__(self, folder: Path, **changes: object) -> None:
        content = {**PARAMETERS, "rl": {**PARAMETERS["rl"], "num_iterations": 1}}
        content |= {"pretrain_agents": False, "trainer": "mine.py:Mine", **changes}
        self.settings = ExperimentSettings(
            home=str(folder / "home"), runs=str(folder / "runs"), progress="none", tracking=False
        )
        hyper_params = HyperParameters.from_dict(content, folder)
        self.keys = make_keys("main", hyper_params, base_dir=str(folder))
        self.store = StageStore(self.settings.store_url)

    def run(self):
        """Execute the stages; return the manifests by stage."""
        with closing(ArmSession(self.keys, self.settings, self.store)) as session:
            return {each.call.stage: each.manifest for each in run_stages(session)}

    def noted(self):
        """Execute the stages; return the noted files by stage."""
        return {stage: read_noted_files(self.store, m) for stage, m in self.run().items()}


def test_undeclared_files_are_noted_with_their_digests(folder):
    arm = Arm(folder)
    noted = arm.noted()
    assert set().union(*noted.values()) == UNDECLARED
    assert noted["build_scenario"] == {}
    for files in noted.values():
        for name, digest in files.items():
            if not name.endswith(".py"):
                assert digest == hashlib.sha256((folder / name).read_bytes()).hexdigest()
        assert changed_files(files, folder) == []
    train = noted["train"]
    (folder / "prompts" / "b.txt").write_text("other")
    (folder / "level-0.txt").unlink()
    (folder / "more1.py").write_text("x = 2  # other")
    assert set(changed_files(train, folder)) == {"prompts/b.txt", "level-0.txt", "more1.py"}


def test_declared_files_are_not_noted_and_no_file_is_written_without_any(folder):
    (folder / "mine.py").write_text(TRAINER.format(reads="reads = ('mine.json', 'more1.py')"))
    manifests = Arm(folder, files=["level-*.txt", "prompts/*"]).run()
    assert not any(NOTED_FILE in manifest.files for manifest in manifests.values())


def test_stages_without_custom_code_note_nothing(folder, monkeypatch):
    def refuse(*_):
        raise AssertionError("no file should be noted")

    monkeypatch.setattr("tasks.stages.undeclared_files.noted_reads", refuse)
    assert not any(Arm(folder, trainer="vanilla_ppo").noted().values())


@pytest.mark.slow
def test_keys_do_not_depend_on_notes_and_stored_stages_keep_them(folder):
    arm = Arm(folder)
    first = {stage: manifest.key for stage, manifest in arm.run().items()}
    assert {stage: manifest.key for stage, manifest in Arm(folder).run().items()} == first
    stored = arm.store.peek(first["train"])
    assert stored.computed_key() == stored.key
    assert arm.store.verify(stored.key) == []
    content = json.loads(arm.store.read_file(stored, NOTED_FILE))
    assert content["files"] == read_noted_files(arm.store, stored)
