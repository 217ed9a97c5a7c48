"""Staged chat model runs, with a trainer that calls no service: kills, retries, payment."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

STAGES = [
    ("initial_state", ""),
    ("sample_rollouts", ";iteration=1"),
    ("log_stats", ";iteration=1"),
    ("test_during_training", ";iteration=1"),
    ("create_fine_tune_jobs", ";iteration=0"),
    ("await_fine_tune_jobs", ";iteration=1"),
    ("test", ""),
]
QUICK = (("sample_rollouts", ";iteration=1"),)
"""The others are run by ``make test-exhaustive``."""
TEXT_RL = {"test_scheme": "all", "fine_tune_on_all_previous_rollouts": True}


def text_params(lab, num_iterations=3, **changes):
    trainer = {"module_path": "tiny_text_trainer.py", "class_name": "TinyTextTrainer"}
    lab.environment.setdefault("TINY_SERVICE", str(lab.folder / "service"))
    return lab.hyper_params(
        trainer=trainer,
        pretrain_agents=False,
        rl={"num_iterations": num_iterations},
        text_rl=TEXT_RL,
        **changes,
    )


def states(lab, result):
    return lab.weights(result)


@pytest.fixture(scope="module")
def undisturbed(new_lab):
    """Return the results of an undisturbed run."""
    lab = new_lab()
    result = lab.run(text_params(lab))
    return {
        "lab": lab,
        "result": result,
        "states": states(lab, result),
        "metrics": lab.metrics(result),
        "done": lab.done(),
    }


def test_every_stage_of_every_iteration_is_done_once(undisturbed):
    done = Counter(undisturbed["done"])
    assert set(done.values()) == {1}
    works = {work for work in done if not work.startswith("call")}
    assert works == {
        "initial_state",
        *(f"sample {i}" for i in range(3)),
        *(f"stats {i}" for i in range(3)),
        *(f"test {i}" for i in range(3)),
        "job 0 attempt 1 with 0 more",
        "job 1 attempt 1 with 1 more",
        "await 0",
        "await 1",
    }, "the last iteration has already tested the final state"
    assert undisturbed["result"]["computed"] == 16
    points = [entry[1:3] for entry in undisturbed["metrics"]]
    assert Counter(points) == Counter(set(points))
    for stage in ("sample_rollouts", "log_stats", "test_during_training"):
        assert [i for name, i in points if name == stage] == [0, 1, 2]
    assert ("test", 3) in points


def test_the_run_folder_has_transcripts_usage_and_a_table(undisturbed):
    folder = Path(undisturbed["result"]["folder"])
    names = {path.name for path in (folder / "transcripts" / "main").iterdir()}
    expected = {f"{i}.jsonl" for i in range(3)} | {f"test-{i}.jsonl" for i in range(3)}
    assert names == expected | {"test.jsonl"}
    usage = json.loads((folder / "usage.json").read_text())
    assert usage["by_stage"]["sample_rollouts"]["cost"] == pytest.approx(0.18)
    assert usage["by_agent"]["verifier"]["calls"] == 36
    rows = {(row["stage"], row["iteration"]) for row in usage["rows"]}
    assert rows == {(s, i) for s in ("sample_rollouts", "test_during_training") for i in range(3)}
    table = json.loads((folder / "tables" / "main-test.json").read_text())
    columns = table.get("columns", table)
    assert set(columns["rounds"]) <= set(range(1, 4))
    assert len(columns["rounds"]) == len(columns["correct"])
    home = undisturbed["lab"].folder / "home"
    assert list((home / "journals").iterdir()) == []


@pytest.mark.parametrize(
    ("stage", "where"),
    [s if s in QUICK else pytest.param(*s, marks=pytest.mark.exhaustive) for s in STAGES],
)
def test_a_run_killed_in_a_stage_gives_the_same_result(lab, undisturbed, stage, where):
    params = text_params(lab)
    lab.environment["TINY_SECONDS"] = "0.05"
    lab.kill(f"stage={stage}{where};within=0.25;seed={len(stage)}", params)
    before = Counter(lab.done())
    result = lab.run(params)
    assert states(lab, result) == undisturbed["states"]
    assert sorted(lab.metrics(result)) == sorted(undisturbed["metrics"])
    counts = Counter(lab.done())
    assert set(counts) == set(undisturbed["done"])
    again = {work for work, count in counts.items() if count > 1}
    assert not [work for work in again if work.startswith(("call", "job"))], "paid twice"
    assert all(before[work] for work in again)


def test_messages_are_stored_for_the_configured_number_of_rollouts(lab, undisturbed):
    result = lab.run(text_params(lab), lab.settings(num_rollout_samples=1))
    assert states(lab, result) == undisturbed["states"]
    place = Path("transcripts") / "main" / "0.jsonl"
    kept = (Path(result["folder"]) / place).read_text().splitlines()
    whole = (Path(undisturbed["result"]["folder"]) / place).read_text().splitlines()
    assert kept[0] == whole[0]
    assert len(kept) == len(whole) > 1
    assert all(json.loads(line)["rounds"] == [] for line in kept[1:])


def test_a_second_run_is_fully_cached(lab):
    params = text_params(lab)
    first = lab.run(params)
    done = lab.done()
    second = lab.run(params)
    assert (second["computed"], second["cached"]) == (0, first["computed"])
    assert second["metrics"] == first["metrics"]
    assert lab.done() == done


def test_a_failed_job_is_reported_and_not_retried_until_resume(lab):
    params = text_params(lab)
    settings = lab.settings(retries=2, retry_delay_seconds=0.01)
    lab.environment["TINY_FAIL"] = "1"
    failed = lab.run(params, settings, expect=1)
    assert "out of examples" in failed["output"]
    (folder,) = (lab.folder / "runs").iterdir()
    assert "out of examples" in json.loads((folder / "manifest.json").read_text())["error"]
    assert Counter(lab.done())["job 1 attempt 1 with 1 more"] == 1
    before = lab.done()
    lab.run(action="resume", run=folder.name, settings=settings)
    news = [work for work in lab.done()[len(before) :] if not work.startswith("call")]
    assert news[:2] == ["job 1 attempt 2 with 1 more", "await 1"]
    assert set(news[2:]) == {"sample 2", "stats 2", "test 2"}


def test_a_failing_stage_is_retried_by_its_task(lab):
    once = lab.folder / "once"
    fault = f"stage=sample_rollouts;iteration=1;kind=raise;once={once}"
    settings = lab.settings(retries=2, retry_delay_seconds=0.01)
    result = lab.run(text_params(lab), settings, environment={"RATCHET_FAULT": fault})
    assert once.exists()
    assert result["computed"] == 16


def test_two_equal_concurrent_runs_pay_once(lab, undisturbed):
    params = text_params(lab)
    lab.environment["TINY_SECONDS"] = "0.05"
    processes = [lab.start(params) for _ in range(2)]
    assert [process.wait(240) for process, _ in processes] == [0, 0]
    assert Counter(lab.done()) == Counter(undisturbed["done"])
    assert sum(lab.read(path)["computed"] for _, path in processes) == 16


def test_an_interrupted_run_ends_immediately_and_loses_no_finished_call(lab):
    params = text_params(lab)
    lab.environment["TINY_SECONDS"] = "1.5"
    process, _ = lab.start(params)
    while not any(work.startswith("call sample 0") for work in lab.done()):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.wait(240)
    before = [work for work in lab.done() if work.startswith("call")]
    assert len(before) < 6, "it waited for the stage"
    lab.environment["TINY_SECONDS"] = "0"
    lab.run(params)
    assert set(Counter(lab.done()).values()) == {1}
