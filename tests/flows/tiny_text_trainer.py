"""Trainer of chat models without a service: models are names that determine the completions.

Every call and every piece of work is a line in the file TINY_LOG. A call takes
TINY_SECONDS and costs 0.01. Fine-tuning jobs are files in the folder TINY_SERVICE; the first
attempt of the job in iteration TINY_FAIL fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ratchet.errors import FineTuneError
from ratchet.language_models.journal import CallJournal
from ratchet.language_models.pricing import ModelPrice
from ratchet.language_models.types import ChatMessage, ChatRequest, Completion
from ratchet.language_models.usage import UsageMeter
from ratchet.rollouts.specs import rollout_spec
from ratchet.seeding import derive_seed
from trainers.base import Trainer
from trainers.text.base import PureTextRlTrainer

NUM_DATAPOINTS = 4  # in the training and test sets of its experiments
NUM_ROLLOUTS = 6


def note(what):
    with Path(os.environ["TINY_LOG"]).open("a") as file:
        file.write(what + "\n")


def pause():
    time.sleep(float(os.environ.get("TINY_SECONDS", "0")))


@dataclass(frozen=True)
class TinyTextState:
    iteration: int = 0
    model: str = "base"
    job: str = ""

    def save(self, directory):
        Path(directory).mkdir(parents=True, exist_ok=True)
        (Path(directory) / "state.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, directory):
        return cls(**json.loads((Path(directory) / "state.json").read_text()))


class TinyTextTrainer(PureTextRlTrainer):
    State = TinyTextState
    traits, trainer_type = Trainer.traits, Trainer.trainer_type
    _stage_create_fine_tune_jobs = None
    responses_per_step = PureTextRlTrainer.responses_per_step

    def __init__(self, hyper_params, scenario_instance, settings):
        Trainer.__init__(self, hyper_params, scenario_instance, settings)
        self._state = TinyTextState()

    def initial_state(self):
        self._state = TinyTextState()
        note("initial_state")
        return self._state

    @property
    def state(self):
        return self._state

    @state.setter
    def state(self, state):
        self._state = state

    def _play(self, what, journal_path):
        name = "sample_rollouts" if "sample" in what else "test"
        meter = UsageMeter(name, self.ledger)
        with CallJournal(journal_path) as journal:
            texts = [asyncio.run(self._ask(what, i, journal, meter)) for i in range(NUM_ROLLOUTS)]
        spec = rollout_spec(self.max_message_rounds, 2, len(self._channels))
        rollouts = spec.zeros((NUM_ROLLOUTS,))
        rollouts["rollout_id"] = np.arange(NUM_ROLLOUTS)
        rollouts["datapoint_id"] = np.arange(NUM_ROLLOUTS) % NUM_DATAPOINTS
        rollouts["padding"] = np.arange(self.max_message_rounds)[None].repeat(NUM_ROLLOUTS, 0) > 0
        decision = rollouts["agents", "decision"]
        verifier = self.agent_names.index("verifier")
        decision[:, 0, verifier] = [int(text) for text in texts]
        rollouts["agents", "decision"] = decision
        note(what)
        return rollouts, meter

    _channels = property(lambda self: self.protocol_handler.message_channel_names)

    async def _ask(self, what, number, journal, meter):
        request = ChatRequest(self.state.model, (ChatMessage("user", f"{what} {number}"),))

        price = ModelPrice(900.0, 1000.0)

        async def make():
            async with meter.bill(price, request, f"r{number}").attempt() as billed:
                answered = answer()
                billed.answered(answered.prompt_tokens, answered.completion_tokens)
            return answered

        def answer():
            pause()
            answer = derive_seed(0, self.state.model, 0, request.messages[0].content) % 2
            note(f"call {what} {number}")
            return Completion(str(answer), "stop", 10, 1, self.state.model)

        completion = await journal.call(f"r{number}", request, make)
        meter.record_call("verifier", completion.model, completion, price)
        return completion.text

    def sample_rollouts(self, iteration, journal_path):
        assert self.state.iteration == iteration
        return self._play(f"sample {iteration}", journal_path)

    def compute_stats(self, iteration, rollouts):
        pause()
        note(f"stats {iteration}")
        return {"accepted": float((rollouts["agents", "decision"] == 1).sum()), "no": float("nan")}

    def test(self, iteration, journal_path, dataset="test"):
        rollouts, meter = self._play(f"test {iteration}", journal_path)
        return rollouts, {"accuracy": float((rollouts["agents", "decision"] == 0).mean())}, meter

    def create_fine_tune_jobs(self, iteration, rollouts, previous_rollouts=()):
        assert self.state.iteration == iteration
        service = Path(os.environ["TINY_SERVICE"])
        service.mkdir(exist_ok=True)
        attempt = 1
        while (service / f"{iteration}.{attempt}.failed").exists():
            attempt += 1
        job = service / f"{iteration}.{attempt}"
        if not job.exists():
            job.write_text(f"{len(previous_rollouts)}")
            note(f"job {iteration} attempt {attempt} with {len(previous_rollouts)} more")
        pause()
        return TinyTextState(iteration, self.state.model, job.name)

    def job_stats(self):
        return {"all.insufficient_data": 0.0}

    def await_fine_tune_jobs(self, iteration):
        job = Path(os.environ["TINY_SERVICE"]) / self.state.job
        pause()
        if os.environ.get("TINY_FAIL") == str(iteration) and job.name.endswith(".1"):
            job.with_name(f"{job.name}.failed").touch()
            raise FineTuneError("the job failed: out of examples.")
        note(f"await {iteration}")
        return TinyTextState(iteration + 1, f"{self.state.model}+{iteration}")

    @classmethod
    def stage_key_parameters(cls, hyper_params, stage, iteration=0):
        data = hyper_params.to_dict()
        names = {"create_fine_tune_jobs": ["seed", "pure_text_ei"], "await_fine_tune_jobs": []}
        found = {name: data[name] for name in names.get(stage, ["seed"])}
        if stage.startswith("test"):
            found["on_whole"] = data["text_rl"]["test_on_whole_dataset"]
        return found
