"""Trainers of chat models report current work and waiting, even without a count."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from ratchet.language_models.fine_tune_jobs import FineTuneJob
from trainers.progress import progress_reporter
from trainers.text.jobs import await_jobs


class Listener:
    """Records descriptions and metrics."""

    def __init__(self):
        self.said, self.shown, self.loops = [], [], 0

    def start(self, total):
        self.loops += 1

    def describe(self, description):
        self.said.append(description)

    def show(self, metrics):
        self.shown.append(metrics)

    def advance(self, steps):
        pass

    def finish(self):
        pass


def test_each_stage_says_its_iteration_and_shows_its_accuracy(tiny_text):
    hyper_params = tiny_text.parameters(trainer="pure_text_ei")
    listener = Listener()
    with progress_reporter(listener):
        tiny_text.trainer(hyper_params).train()
    said = list(dict.fromkeys(listener.said))
    assert said[0] == "iteration 1 of 3 · Sampling rollouts"
    assert "iteration 2 of 3 · Creating fine-tune jobs" in said
    assert said[-1].endswith("Testing")
    assert listener.loops >= 4
    assert any("accuracy" in metrics for metrics in listener.shown)
    assert any("test_accuracy" in metrics for metrics in listener.shown)


class Group:
    """A group whose job is polled once per status."""

    def __init__(self, *looks):
        self.state = SimpleNamespace(fine_tune_job_id="job" if looks else None)
        self.looks = looks

    async def await_job(self, on_look=None):
        for status, steps in self.looks:
            on_look(FineTuneJob("job", status, "model", steps=steps))
            await asyncio.sleep(0)

    def get_fine_tune_job_status(self):
        return "succeeded" if self.looks else "frozen"

    async def activate_next_model(self):
        pass

    def record_usage(self, usage):
        pass

    def switch_to_next_model(self):
        pass


def test_it_says_which_job_is_waited_for_and_how_far_it_is():
    first = [("running", (1, 9)), ("running", (8, 9)), ("succeeded", None), ("succeeded", None)]
    second = [("pending", None), ("pending", None), ("pending", None), ("running", None)]
    groups = {"prover": Group(*first), "verifier": Group(*second), "simulator": Group()}
    listener = Listener()
    with progress_reporter(listener):
        asyncio.run(await_jobs(groups, None))
    assert list(dict.fromkeys(listener.said)) == [
        "Waiting for fine-tuning job 1 of 2, prover (running, step 1 of 9)",
        "Waiting for fine-tuning job 1 of 2, prover (running, step 8 of 9)",
        "Waiting for fine-tuning job 2 of 2, verifier (queued)",
        "Waiting for fine-tuning job 2 of 2, verifier (running)",
    ]
