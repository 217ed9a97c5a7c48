"""All training data are on the agents' device: an emulated one that refuses others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ratchet.seeding import seeded_globals
from tests.trainers.emulated_device import play_in_a_process

SCRIPT = Path(__file__).with_name("play_on_emulated_device.py")
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
    """Return the number of each game's synchronisations in an iteration."""
    lines = play_in_a_process(SCRIPT, *games)
    waits = {name: int(number) for name, number in map(str.split, lines)}
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
