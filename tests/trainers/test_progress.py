"""Loops declare their number of iterations and report progress."""

from __future__ import annotations

import pytest

from trainers.progress import (
    IterationContext,
    attach_progress_bar,
    declared_iterations,
    describe,
    progress_path,
    report_iterations,
)
from trainers.progress import progress_reporter as listen


class Recorder:
    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args: self.calls.append((name, *args))


class Looper:
    def __init__(self, count):
        self.count = count

    @attach_progress_bar(lambda self: self.count)
    def _run_train_loop(self, iteration_context: IterationContext):
        iteration_context.set_description("Training")
        for _ in range(self.count):
            iteration_context.set_postfix(loss=0.5)
            iteration_context.step()
        return "done"

    @attach_progress_bar(lambda self: 2 * self.count)
    def _run_test_loop(self, iteration_context: IterationContext):
        raise RuntimeError("no")


def test_a_loop_is_called_without_its_context_and_tells_the_listener():
    recorder = Recorder()
    with listen(recorder):
        assert Looper(2)._run_train_loop() == "done"
    step = [("show", {"loss": 0.5}), ("advance", 1)]
    assert recorder.calls == [("start", 2), ("describe", "Training"), *step, *step, ("finish",)]


def test_a_loop_that_fails_ends_its_progress():
    recorder = Recorder()
    with listen(recorder), pytest.raises(RuntimeError):
        Looper(1)._run_test_loop()
    assert recorder.calls == [("start", 2), ("finish",)]


def test_what_is_done_is_said_with_where_it_is_done():
    recorder = Recorder()
    with listen(recorder), progress_path("seed_2"):
        Looper(1)._run_train_loop()
        with progress_path("iteration 3 of 6"):
            describe("Testing")
        report_iterations("Training", range(4, 6), lambda _: None, total=60)
        report_iterations("Pretraining verifier", range(1), lambda _: None, unit="epoch")
    assert [text for name, *text in recorder.calls if name == "describe"] == [
        ["seed_2 · Training"],
        ["seed_2 · iteration 3 of 6 · Testing"],
        ["seed_2 · Training, iteration 5 of 60"],
        ["seed_2 · Training, iteration 6 of 60"],
        ["seed_2 · Pretraining verifier, epoch 1 of 1"],
    ]
    describe("Nobody listens")


def test_nobody_needs_to_listen_and_the_total_is_the_sum_of_all_loops():
    assert Looper(3)._run_train_loop() == "done"
    assert declared_iterations(Looper(3)) == 9


def test_a_subclass_passes_its_context_on():
    class Louder(Looper):
        @attach_progress_bar(lambda self: 10 * self.count)
        def _run_train_loop(self, iteration_context: IterationContext):
            super()._run_train_loop(iteration_context)
            return iteration_context.completed

    assert Louder(4)._run_train_loop() == 4
    assert declared_iterations(Louder(1)) == 12


def test_training_reports_every_iteration(tiny):
    recorder = Recorder()
    trainer = tiny.trainer(tiny.parameters())
    with listen(recorder):
        trainer.train()
    assert trainer.get_total_num_iterations() == 3 + 2
    advanced = sum(call[1] for call in recorder.calls if call[0] == "advance")
    assert advanced == 3 + 1  # ten datapoints fill one batch of eight and a part of the next
