"""One body forward and backward: on the fast path against the plain one, in one run.

How long the plain ones take says how fast the machine is at the moment. All rows act, and a loss
on every output is differentiated. Run with ``python benchmarks/plain_body.py``.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import contextlib
import statistics
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from ratchet import ExperimentSettings, HyperParameters
from ratchet.agents.tapes import only_plain_operations
from ratchet.scenarios import build_scenario_instance

SMALL = {"use_dual_gnn": False, "num_transformer_layers": 1}
DEFAULT_BODY = "default body, minibatch 64"
DEEP_BODY = "5 GNN layers, 1 transformer layer, minibatch 128"
SHALLOW_BODY = "2 GNN layers, 1 transformer layer, minibatch 128"
SETTINGS: dict[str, tuple[int, dict[str, Any]]] = {
    DEFAULT_BODY: (64, {}),
    DEEP_BODY: (128, SMALL),
    SHALLOW_BODY: (128, {**SMALL, "num_gnn_layers": 2}),
}


class BodyPass:
    """A body and its solo head, with a minibatch to go forward and backward on."""

    def __init__(self, name: str) -> None:
        rows, section = SETTINGS[name]
        hyper_params = HyperParameters(
            scenario="graph_isomorphism",
            trainer="vanilla_ppo",
            dataset="er1000",
            pretrain_agents=True,
            agents={"_default": section},
        )
        instance = build_scenario_instance(hyper_params, ExperimentSettings())
        self.agents = instance.combined_agents
        self.data = instance.train_environment.gather_data(torch.arange(rows))

    def median_ms(self, passes: int, *, fast: bool) -> float:
        """Return the median CPU time of a pass."""
        times = []
        with contextlib.nullcontext() if fast else only_plain_operations():
            for _ in range(passes):
                start = time.process_time()
                self.agents.solo_logits("verifier", self.data).square().sum().backward()
                times.append(1000 * (time.process_time() - start))
        return statistics.median(times)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    table = Table("body", "plain, ms", "fast, ms", "ratio", title="Forward and backward")
    for name in SETTINGS:
        body = BodyPass(name)
        plain, fast = [], []
        for _ in range(12):
            plain.append(body.median_ms(5, fast=False))
            fast.append(body.median_ms(5, fast=True))
        ratio = statistics.median(p / f for p, f in zip(plain, fast, strict=True))
        shown = (statistics.median(plain[1:]), statistics.median(fast[1:]))
        table.add_row(name, f"{shown[0]:.1f}", f"{shown[1]:.1f}", f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
