"""The example's statistic is recorded with each iteration, beside those of the base."""

from __future__ import annotations

import importlib.util
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_prover_learns_that_lies_pay_or_do_not(capsys):
    spec = importlib.util.spec_from_file_location("own_statistic", EXAMPLES / "own_statistic.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    trainer = module.train(num_iterations=2)
    recorded = [record.values for record in trainer.history if record.stage == "train"]
    assert len(recorded) == 2
    for values in recorded:
        assert 0 < values["prover.lie_rate"] < 1
        assert "verifier.accuracy" in values


def test_only_what_the_prover_says_about_a_bit_that_is_0_counts():
    import torch
    from tensordict import TensorDict

    spec = importlib.util.spec_from_file_location("own_statistic", EXAMPLES / "own_statistic.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    agents = TensorDict(
        {
            # four episodes of two rounds: the prover speaks in the first, the verifier in the other
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
