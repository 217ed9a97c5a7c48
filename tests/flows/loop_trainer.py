"""Trainer with a custom loop, in the form that the guide describes.

Each iteration moves all weights towards random numbers from the global generator. Its duration
is set by TINY_SECONDS, and each finished iteration is a line in the file TINY_LOG.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainers import IterationContext, TensorDictTrainer, attach_progress_bar


def note(what):
    time.sleep(float(os.environ.get("TINY_SECONDS", "0")))
    if "TINY_LOG" in os.environ:
        with Path(os.environ["TINY_LOG"]).open("a") as file:
            file.write(what + "\n")


class LoopTrainer(TensorDictTrainer):
    """Set the seed; train; test; save."""

    @dataclass
    class State(TensorDictTrainer.State):
        optimizer: dict[str, Any] = field(default_factory=dict)

    def train(self):
        torch.manual_seed(self.hyper_params.seed)
        with ExitStack() as stack:
            self._build_train_context(stack)
            self._run_train_loop()
        with ExitStack() as stack:
            self._build_test_context(stack)
            self._run_test_loop()
        self.save_checkpoint()

    @attach_progress_bar(lambda self: self.hyper_params.rl.num_iterations)
    def _run_train_loop(self, iteration_context: IterationContext):
        iteration_context.set_description("Training")
        params = list(self.combined_agents.parameters())
        optimizer = torch.optim.Adam(params, lr=0.01)
        if self.state.optimizer:
            optimizer.load_state_dict(self.state.optimizer)
        for iteration in range(self.state.iteration, self.hyper_params.rl.num_iterations):
            loss = sum((param - torch.randn_like(param)).square().mean() for param in params)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.log_stats({"loss": float(loss)}, iteration=iteration, stage="train")
            self.state.iteration = iteration + 1
            self.state.optimizer = optimizer.state_dict()
            self.save_checkpoint()
            note(f"train {iteration}")
            iteration_context.step()

    @attach_progress_bar(lambda self: self.hyper_params.rl.num_test_iterations)
    def _run_test_loop(self, iteration_context: IterationContext):
        iteration_context.set_description("Testing")
        total = sum(float(param.sum()) for param in self.combined_agents.parameters())
        noise = float(torch.randn(()))
        stats = {"total": total, "noise": noise}
        self.log_stats(stats, iteration=self.state.iteration, stage="test")
        note("test")
        iteration_context.step()
