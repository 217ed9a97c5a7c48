"""The example of a custom callback records its metric and ends training by it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from ratchet.plugins import load_module

EXAMPLE = Path(__file__).parents[3] / "examples" / "custom_callback.py"


def test_the_example_stops_when_episodes_are_short(capsys):
    trainer = load_module(EXAMPLE).main()
    shares = [r.values["rounds_used"] for r in trainer.history if r.stage == "train"]
    assert trainer.has_stopped
    assert len(shares) < 8
    assert max(shares[-2:]) <= 0.3
    assert not any(max(pair) <= 0.3 for pair in pairwise(shares[:-1]))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(shares) + 1
    assert lines[-1] == "stopped early"
