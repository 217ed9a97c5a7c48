"""The example's statistic is recorded with each iteration, next to those of the base class."""

from __future__ import annotations

import importlib.util
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_statistic.py"


def load_example():
    spec = importlib.util.spec_from_file_location("custom_statistic", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lie_rate_is_recorded_in_each_iteration(capsys):
    module = load_example()
    trainer = module.train(num_iterations=2)
    recorded = [record.values for record in trainer.history if record.stage == "train"]
    assert len(recorded) == 2
    for values in recorded:
        assert 0 < values["prover.lie_rate"] < 1
        assert "verifier.accuracy" in values


def test_only_messages_of_the_prover_about_a_0_bit_count():
    import torch
    from tensordict import TensorDict

    module = load_example()
    agents = TensorDict(
        {
            # four episodes of two rounds: first the prover speaks, then the verifier
            "message": torch.tensor([[1, 1], [0, 1], [1, 1], [1, 0]])
            .reshape(4, 2, 1, 1, 1)
            .expand(4, 2, 2, 1, 1),
            "active": torch.tensor([[True, False], [False, True]]).expand(4, 2, 2).unsqueeze(-1),
        },
        batch_size=[4, 2],
    )
    y = torch.tensor([0, 0, 1, 1]).unsqueeze(-1).expand(4, 2)
    rollouts = TensorDict({"agents": agents, "y": y}, batch_size=[4, 2])
    assert module.lie_rate(rollouts, prover=0) == 0.5
