"""One body forward and backward: fused operations against plain dense ones, in one run.

How long the plain ones take says how fast the machine is at the moment. All rows act, and a loss
on every output is differentiated. Run with ``python benchmarks/plain_body.py``.
"""

from __future__ import annotations

import statistics
import time
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance

FUSED_IN = (
    "ratchet.agents.layers",
    "ratchet.agents.scores",
    "ratchet.scenarios.graph_isomorphism.gin",
    "ratchet.scenarios.graph_isomorphism.transformer",
)
SMALL = {"use_dual_gnn": False, "num_transformer_layers": 1}
SETTINGS: list[tuple[str, int, dict[str, Any]]] = [
    ("default body, minibatch 64", 64, {}),
    ("5 GNN layers, 1 transformer layer, minibatch 128", 128, SMALL),
    ("2 GNN layers, 1 transformer layer, minibatch 128", 128, {**SMALL, "num_gnn_layers": 2}),
]


def median_ms(section: dict[str, Any], rows: int, *, fused: bool) -> float:
    """Give the median CPU time of a forward and backward pass of body and solo head."""
    hyper_params = HyperParameters(
        scenario="graph_isomorphism",
        trainer="vanilla_ppo",
        dataset="er1000",
        pretrain_agents=True,
        agents={"_default": section},
    )
    instance = build_scenario_instance(hyper_params, ExperimentSettings())
    agents = instance.combined_agents
    assert agents is not None
    data = instance.train_environment.gather_data(torch.arange(rows))
    times = []
    patches = [] if fused else [mock.patch(f"{m}.may_fuse", return_value=False) for m in FUSED_IN]
    for patch in patches:
        patch.start()
    for _ in range(60):
        start = time.process_time()
        agents.solo_logits("verifier", data).square().sum().backward()
        times.append(1000 * (time.process_time() - start))
    for patch in patches:
        patch.stop()
    return statistics.median(times[10:])


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    table = Table("body", "plain, ms", "fused, ms", "ratio", title="Forward and backward")
    for name, rows, section in SETTINGS:
        plain = median_ms(section, rows, fused=False)
        fused = median_ms(section, rows, fused=True)
        table.add_row(name, f"{plain:.1f}", f"{fused:.1f}", f"{plain / fused:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
