"""All training data are on the agents' device: an emulated one that refuses others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ratchet.seeding import seeded_globals

HERE = Path(__file__).parent
PROTOCOLS = (
    "adp",
    "debate",
    "merlin_arthur",
    "mnip",
    "multi_channel_test",
    "nip",
    "zero_knowledge",
)
TRAINERS = ("vanilla_ppo", "reinforce", "spg", "solo_agent")


def play(*games: str) -> dict[str, int]:
    """Play games in a separate process, since a device is registered for all of one.

    Return the number of each game's synchronisations in an iteration.
    """
    command = [sys.executable, str(HERE / "play_on_emulated_device.py"), *games]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    waits = {name: int(number) for name, number in map(str.split, done.stdout.splitlines())}
    assert list(waits) == list(games)
    return waits


@pytest.mark.slow
def test_games_of_several_channels_and_environments_stay_on_the_device():
    """In an iteration of 32 steps, each step checks once whether an episode has ended."""
    games = "nip.vanilla_ppo", "zero_knowledge.vanilla_ppo", "gymnasium.CartPole-v1"
    waits = play(*games)
    assert waits["nip.vanilla_ppo"] <= 70
    assert waits["gymnasium.CartPole-v1"] <= 32 + 45


@pytest.mark.slow
@pytest.mark.parametrize(
    "trainer",
    [TRAINERS[0], *(pytest.param(name, marks=pytest.mark.exhaustive) for name in TRAINERS[1:])],
)
def test_every_protocol_stays_on_the_device(trainer):
    play(*(f"{protocol}.{trainer}" for protocol in PROTOCOLS))


@pytest.mark.slow
def test_environments_stay_on_the_device():
    play("gymnasium.Pendulum-v1", "gymnasium.Acrobot-v1", "gymnasium.MountainCar-v0")
    play("told.CartPole-v1")


def test_seeding_takes_hold_of_no_device_that_nobody_uses(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def taken():
        raise AssertionError("a context was created on the device")

    monkeypatch.setattr(torch.cuda, "get_rng_state_all", taken)
    with seeded_globals(3):
        first = torch.rand(2)
    with seeded_globals(3):
        assert torch.equal(torch.rand(2), first)
