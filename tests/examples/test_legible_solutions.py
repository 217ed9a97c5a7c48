"""The example whose labels are made by play: its episodes, stages, tables and keys."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from flows.planning.plan import plan
from flows.runs.resolve import resolve_file
from ratchet.plugins import load_module
from ratchet.rollouts.outcomes import final_decisions
from ratchet.statistics.results import same_datapoints
from ratchet.store.store import StageStore
from tasks.stages.driver import run_stages
from tasks.stages.families import make_keys, open_session
from tasks.stages.files import read_table
from tasks.text.files import read_rollouts

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def file(tmp_path):
    for suffix in (".py", ".yaml"):
        shutil.copy(EXAMPLES / f"legible_solutions{suffix}", tmp_path)
    return tmp_path / "legible_solutions.yaml"


def test_a_sneaky_prover_is_paid_for_wrong_solutions_that_are_accepted(capsys):
    load_module(EXAMPLES / "legible_solutions.py").main()
    assert capsys.readouterr().out.splitlines() == [
        "sneaky: right 0%, accepted 50%, reward 0.50",
        "helpful: right 100%, accepted 100%, reward 1.00",
    ]


def test_its_stages_store_the_labels_of_what_was_said(file, tmp_path):
    # A random reply has no number: call it right if it has an even number of words.
    text = file.with_suffix(".py").read_text()
    label = "return int(len(position.messages[-1].text.split()) % 2 == 0)"
    edited = text.replace("numbers = re.findall", f"{label}\n        numbers = re.findall")
    file.with_suffix(".py").write_text(edited)
    resolved = resolve_file(str(file), [f"settings.home={tmp_path}", "settings.progress=none"])
    params, settings = resolved.arms["main"], resolved.settings
    keys = make_keys("main", params, base_dir=settings.base_dir)
    store = StageStore(settings.store_url, reserve_bytes=0)
    with closing(open_session(keys, settings, store)) as session:
        run_stages(session)
    rollouts = read_rollouts(store, keys.sample_rollouts(0).key)
    words = [len(text.split()) for text in rollouts["message_history"][:, 0, 0]]
    assert rollouts["y"].tolist() == [int(count % 2 == 0) for count in words]
    assert set(rollouts["y"].tolist()) == {0, 1}
    accepted = final_decisions(rollouts, 1) == 1
    paid = accepted & (rollouts["y"] == rollouts["prover_stance"])
    assert rollouts["agents", "reward"][:, :, 0].sum(1).tolist() == paid.tolist()
    table = read_table(store.open(keys.test("test").key))
    other = table | {"y": [1 - label for label in table["y"]]}
    assert same_datapoints(table, other), "labels made by play do not identify datapoints"


def test_a_changed_label_changes_the_keys_of_stages_that_play(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    module = file.with_suffix(".py")

    def keys(answer):
        data_code = "def data_code(self): return ()"  # so that only rollouts depend on the label
        text = (EXAMPLES / module.name).read_text().replace("numbers[-1:]", answer)
        module.write_text(
            text.replace("def build_datasets", f"{data_code}\n    def build_datasets")
        )
        return {stage.stage: stage.key for stage in plan(resolve_file(file.name, []))}

    last, first = keys("numbers[-1:]"), keys("numbers[:1]")
    assert last["build_scenario"] == first["build_scenario"]
    assert last["sample_rollouts"] != first["sample_rollouts"]
    assert last["test"] != first["test"]
