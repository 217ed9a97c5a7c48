"""A run that is killed in any stage and re-run gives the result of an undisturbed run."""

from __future__ import annotations

from collections import Counter

import pytest

pytestmark = pytest.mark.slow

STAGES = [
    ("build_scenario", ""),
    ("initial_state", ""),
    ("pretrain", ";detail=prover"),
    ("pretrained_state", ""),
    ("train", ";iteration=6"),
    ("test", ""),
    ("save", ";detail=report"),
]
QUICK = (("train", ";iteration=6"),)
"""The others are run by ``make test-exhaustive``."""


@pytest.fixture(scope="module")
def undisturbed(new_lab):
    """Return the results of an undisturbed run."""
    lab = new_lab()
    result = lab.run()
    return {
        "result": result,
        "weights": lab.weights(result),
        "metrics": lab.metrics(result),
        "done": lab.done(),
    }


@pytest.mark.parametrize(
    ("stage", "where"),
    [s if s in QUICK else pytest.param(*s, marks=pytest.mark.exhaustive) for s in STAGES],
)
def test_a_run_killed_in_a_stage_gives_the_same_result(lab, undisturbed, stage, where):
    seed = sum(map(ord, stage))
    lab.environment = {"TINY_SECONDS": "0.05"}
    lab.kill(f"stage={stage}{where};within=0.1;seed={seed}")
    before = lab.done()
    result = lab.run()
    assert lab.weights(result) == undisturbed["weights"]
    assert result["states"] == undisturbed["result"]["states"]
    assert lab.metrics(result) == undisturbed["metrics"]
    counts = Counter(lab.done())
    assert set(counts) == set(undisturbed["done"])
    again = {piece for piece, count in counts.items() if count > 1}
    assert again <= {piece for piece in before if piece.startswith(stage)}
    assert all(counts[f"train {i}"] == 1 for i in range(3)), "a finished stage was recomputed"


def test_a_second_run_is_fully_cached_without_heavy_imports(lab):
    first = lab.run(settings=lab.settings(tracking=True))
    assert (first["computed"], first["cached"]) == (9, 0)
    pieces = lab.done()
    second = lab.run(settings=lab.settings(tracking=True))
    assert (second["computed"], second["cached"]) == (0, 9)
    assert second["run_id"] == first["run_id"]
    assert second["metrics"] == first["metrics"]
    assert second["heavy"] == []
    assert lab.done() == pieces


def test_a_failing_stage_is_retried_by_its_task(lab):
    once = lab.folder / "once"
    fault = f"stage=train;iteration=6;kind=raise;once={once}"
    settings = lab.settings(retries=2, retry_delay_seconds=0.01)
    result = lab.run(settings=settings, environment={"RATCHET_FAULT": fault})
    assert once.exists()
    assert result["computed"] == 9


def test_results_do_not_depend_on_hash_randomisation(lab, undisturbed):
    for seed in ("0", "1"):
        settings = lab.settings(home=str(lab.folder / "home"), store=str(lab.folder / seed))
        result = lab.run(settings=settings, environment={"PYTHONHASHSEED": seed})
        assert result["states"] == undisturbed["result"]["states"]
        state = lab.folder / seed / "stages" / result["states"]["main"]
        assert lab.hashes(state) == undisturbed["weights"]


def test_two_equal_concurrent_runs_compute_each_stage_once(lab, undisturbed):
    lab.environment = {"TINY_SECONDS": "0.05"}
    processes = [lab.start() for _ in range(2)]
    assert [process.wait(240) for process, _ in processes] == [0, 0]
    assert Counter(lab.done()) == Counter(undisturbed["done"])
    results = [lab.read(path) for _, path in processes]
    assert sum(result["computed"] for result in results) == 9
    assert [lab.weights(result) for result in results] == [undisturbed["weights"]] * 2
    assert sorted(lab.metrics(results[0])) == sorted(undisturbed["metrics"])


@pytest.mark.in_turn(4, of="kills")
def test_a_real_trainer_killed_in_training_gives_the_same_result(lab):
    hyper_params = lab.hyper_params(
        trainer="vanilla_ppo",
        interaction_protocol="nip",
        rl={"num_iterations": 4, "frames_per_batch": 64, "minibatch_size": 32, "num_epochs": 2},
        solo_agent={"num_epochs": 2, "batch_size": 32},
        nip_protocol={"max_message_rounds": 4},
    )
    whole = lab.settings(iterations_per_task=4, store=str(lab.folder / "whole"), run_id="whole")
    expected = lab.run(hyper_params, whole)
    pieces = lab.settings(iterations_per_task=1)
    lab.kill("stage=train;iteration=3;within=0.3;seed=5", hyper_params, pieces)
    result = lab.run(hyper_params, pieces)
    assert result["states"] == expected["states"]
    stage = lab.folder / "whole" / "stages" / expected["states"]["main"]
    assert lab.weights(result) == lab.hashes(stage)
    assert lab.metrics(result) == lab.metrics(expected)
    assert result["cached"] >= 6
