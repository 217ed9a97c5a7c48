"""Verifiers of the self-proving tasks accept honest proofs and refuse forged ones."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ratchet import HyperParameters
from ratchet.plugins import load_module
from ratchet.scenarios.language_task.task import Task
from ratchet.scenarios.registry import build_scenario
from ratchet.scenarios.validation_split import split_datasets

FOLDER = Path(__file__).parents[2] / "experiments"
tasks = load_module("self_proving.py", FOLDER)


def build(source, **options):
    given = HyperParameters(
        scenario="language_task",
        trainer="grpo",
        dataset=f"self_proving.py:{source}",
        language_task={"num_train": 1000, "num_test": 200, "task_options": options},
    )
    scenario = build_scenario("language_task", FOLDER)
    return split_datasets(scenario, given), scenario._source(given)


def test_every_honest_proof_of_a_divisor_is_accepted_and_can_be_written():
    for x in range(1, tasks.LARGEST + 1):
        for y in range(1, tasks.LARGEST + 1):
            steps, proof = tasks.bezout(x, y)
            assert tasks.accepts_divisor(x, y, *proof)
            assert proof[0] == math.gcd(x, y)
            for _, _, r, s, t in steps:
                assert r == s * x + t * y
            assert tasks.read(tasks.write(*proof)) == list(proof)


def test_no_forged_divisor_of_a_million_is_accepted():
    rng = np.random.default_rng(0)
    x, y = rng.integers(1, tasks.LARGEST + 1, size=(2, 1_030_000)).tolist()
    k, shift = rng.integers(-3, 4, size=(2, 1_030_000)).tolist()
    numbers = range(1, tasks.LARGEST + 1)
    proofs = {(a, b): tasks.bezout(a, b)[1] for a in numbers for b in numbers}
    num_wrong = 0
    for a, b, times, moved in zip(x, y, k, shift, strict=True):
        g, u, v = proofs[a, b]
        # multiples of the proof fulfil Bézout's identity, shifted divisors may divide both numbers
        forged = (times * g, times * u, times * v) if moved == 0 else (g + moved, u, v)
        if forged[0] != g:
            num_wrong += 1
            assert not tasks.accepts_divisor(a, b, *forged)
    assert num_wrong >= 1_000_000


def test_models_are_rewarded_for_proofs_only():
    task = Task("gcd(48, 36)", "?", "", {"x": 48, "y": 36})
    for said, proved, correct in (
        (tasks.write(12, 1, -1), 1, 1),
        (tasks.write(3, 4) + tasks.DECIDE + tasks.write(12, 1, -1), 1, 1),
        (tasks.write(12, 0, 0), 0, 1),
        (tasks.write(6, 1, -1), 0, 0),
        (tasks.write(12, 1), 0, 0),
        ("", 0, 0),
    ):
        found = tasks.score_divisor(task, said, ())
        assert (found.reward, found.metrics["correct"]) == (proved, correct)


def test_annotations_end_in_the_answer_and_shifted_training_keeps_the_tests():
    plain, _ = build("Gcd")
    annotated, source = build("Gcd", annotated=True)
    shifted, _ = build("Gcd", annotated=True, log_uniform=True)
    assert annotated["test"].hash == shifted["test"].hash == plain["test"].hash
    for task in annotated["train"]:
        said = source.demonstrate(task)
        assert said.endswith(tasks.DECIDE + task.answer)
        assert len(said) <= 58
    sizes = [np.mean([t.info["x"] for t in made["train"]]) for made in (plain, shifted)]
    assert sizes[1] < 0.65 * sizes[0]


def test_honest_sums_are_accepted_and_wrong_ones_as_often_as_the_page_says():
    rng = np.random.default_rng(1)
    p = tasks.MODULUS
    for _ in range(2):
        values = rng.integers(p, size=4).tolist()
        total, g_0, g_1 = tasks.first_reply(values)
        for c in range(p):
            second = tasks.second_reply(values, c)
            assert all(
                tasks.accepts_line(values, (total, g_0, g_1), second, c, r) for r in range(p)
            )
        best = 0.0
        for wrong in range(p):
            if wrong == total:
                continue
            for a in range(p):
                first = (wrong, a, (wrong - a) % p)
                accepted = 0.0
                for c in range(p):
                    due = tasks.value_between(first[1], first[2], c)
                    accepted += max(
                        sum(
                            tasks.accepts_line(values, first, (h, (due - h) % p), c, r)
                            for r in range(p)
                        )
                        for h in range(p)
                    )
                best = max(best, accepted / p**2)
        assert best == pytest.approx(25 / 169)


@pytest.mark.parametrize("annotated", [False, True])
def test_demonstrations_of_the_sum_check_convince_the_verifier(annotated):
    made, source = build("SumCheck", annotated=annotated)
    assert (len(made["train"]), len(made["test"])) == (1000, 200)
    tested = {str(task.info["values"]) for task in made["test"]}
    assert all(task.info["challenge"] is None for task in made["test"])
    assert not any(str(task.info["values"]) in tested for task in made["train"])
    started = [task for task in made["train"] if task.info["challenge"] is not None]
    assert len(started) > 200
    verifier = source.environment()
    for task in started[:50]:
        episode = verifier.begin(task, seed=1)
        said = source.demonstrate(task)
        assert episode.answer(said).done
        assert episode.evaluate(said, ()).metrics == {"proved": 1.0, "correct": 1.0}
    opening = made["test"][0]
    episode = verifier.begin(opening, seed=2)
    first = source.demonstrate(opening)
    turn = episode.answer(first)
    (challenge,) = tasks.read(turn.messages[0].content)
    at_challenge = replace(opening, info={**opening.info, "challenge": challenge})
    answer = tasks.write(*tasks.second_reply(opening.info["values"], challenge))
    second = source.demonstrate(replace(at_challenge, answer=answer))
    assert second.endswith(answer)
    assert (second == answer) == (not annotated)
    assert [len(m.content) for m in started[0].messages] == [4, len(first), 1], "as it will reply"
    assert episode.answer(second).done
    assert episode.evaluate(second, ()).reward == 1
    wrong = verifier.begin(made["test"][0], seed=2)
    assert wrong.answer(tasks.write(0, 1, 1)).done
    assert wrong.evaluate(tasks.write(0, 1, 1), ()).reward == 0
