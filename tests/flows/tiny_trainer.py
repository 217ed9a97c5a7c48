"""Minimal staged trainer: each iteration adds seeded noise.

A piece of work takes TINY_SECONDS, so that tests can kill it in the middle. The piece named in
TINY_HANG hangs until the file TINY_GO_ON exists. Every finished piece is a line in the file
TINY_LOG.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ratchet.seeding import torch_generator
from trainers.base import Trainer
from trainers.results import PretrainResult, TestResult
from trainers.staged import StagedTrainer


def note(what):
    time.sleep(float(os.environ.get("TINY_SECONDS", "0")))
    while os.environ.get("TINY_HANG") == what and not Path(os.environ["TINY_GO_ON"]).exists():
        time.sleep(0.02)
    if "TINY_LOG" in os.environ:
        with Path(os.environ["TINY_LOG"]).open("a") as file:
            file.write(what + "\n")


@dataclass(frozen=True)
class TinyState:
    iteration: int
    weights: torch.Tensor

    def save(self, directory):
        Path(directory).mkdir(parents=True, exist_ok=True)
        save_file({"weights": self.weights}, Path(directory) / "weights.safetensors")
        (Path(directory) / "state.json").write_text(json.dumps({"iteration": self.iteration}))

    @classmethod
    def load(cls, directory):
        content = json.loads((Path(directory) / "state.json").read_text())
        return cls(
            content["iteration"], load_file(Path(directory) / "weights.safetensors")["weights"]
        )


class TinyTrainer(StagedTrainer):
    State = TinyState

    def __init__(self, hyper_params, scenario_instance, settings):
        super().__init__(hyper_params, scenario_instance, settings)
        self._state = None

    @classmethod
    def pretrained_agent_names(cls, hyper_params):
        return ["verifier", "prover"] if hyper_params.pretrain_agents else []

    def _noise(self, stage, iteration=0, purpose=""):
        generator = torch_generator(self.hyper_params.seed, stage, iteration, purpose)
        return torch.randn(8, generator=generator)

    def initial_state(self):
        self._state = TinyState(0, self._noise("initial_state"))
        return self._state

    @property
    def state(self):
        return self._state

    @state.setter
    def state(self, state):
        self._state = state

    _take_state = _load_state = _do_iteration = _test_on = None

    def pretrain(self, agent_name):
        weights = self._state.weights + self._noise("pretrain", 0, agent_name)
        note(f"pretrain {agent_name}")
        return PretrainResult({"weights": weights}, [{"loss": 1.0}, {"loss": 0.5}])

    def load_pretrained(self, agent_name, result):
        weights = self._state.weights + result.weights["weights"]
        self._state = replace(self._state, weights=weights)

    def run_iterations(self, start, stop):
        assert self._state.iteration == start
        metrics = []
        for iteration in range(start, stop):
            step = self.hyper_params.rl.lr * self._noise("train", iteration)
            weights = torch.tanh(self._state.weights) + step
            self._state = TinyState(iteration + 1, weights)
            metrics.append({"norm": float(weights.norm())})
            note(f"train {iteration}")
        return metrics

    def run_test(self, dataset="test", *, sampled=False):
        note(f"test {dataset}")
        data = self.scenario_instance.datasets[dataset]
        ids = list(range(len(data)))
        decision = [int(self._state.weights[i % 8] > 0) for i in ids]
        y = data["y"].tolist()
        correct = [int(a == b) for a, b in zip(y, decision, strict=True)]
        rounds = self.hyper_params.rl.num_test_iterations
        return TestResult(
            {"accuracy": sum(correct) / len(correct), "rounds": float(rounds)},
            {"datapoint_id": ids, "y": y, "decision": decision, "correct": correct},
        )

    @classmethod
    def stage_key_parameters(cls, hyper_params, stage, agent_name=None):
        names = {
            "initial_state": ["seed"],
            "pretrain": ["seed"],
            "train": ["seed", "rl.lr"],
            "test": ["seed", "rl.num_test_iterations"],
        }[stage]
        data = hyper_params.to_dict()
        data.update({f"rl.{name}": value for name, value in data["rl"].items()})
        return {name: data[name] for name in names}


class TinyScoredTrainer(TinyTrainer):
    """Trainer that records a score only with learning rates below 1; below 0.5 it is infinite."""

    def run_iterations(self, start, stop):
        metrics = super().run_iterations(start, stop)
        rate = self.hyper_params.rl.lr
        score = {"score": float("inf") if rate < 0.5 else rate} if rate < 1 else {}
        return [each | score for each in metrics]


class TinyWholeTrainer(Trainer):
    """Trainer with only ``train()``."""

    def train(self):
        note("run_trainer")
        weights = torch.randn(3)  # from the global generator
        for iteration in range(3):
            values = {"first": float(weights[0]), "square": float(iteration**2)}
            self.log_stats(values, iteration=iteration, stage="train")
        self.log_stats({"accuracy": 0.5}, iteration=3, stage="test")
