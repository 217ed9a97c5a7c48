"""Custom game: each player sees its own card, and keeps it or draws another.

Train language models:  ratchet run examples/language/custom_game.yaml
Train networks:         ratchet run examples/language/custom_game_networks.yaml
Play against them:      ratchet play RUN --seat right
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ratchet.games.match import Game, Match, View
from ratchet.language_models.types import ChatMessage
from ratchet.seeding import numpy_generator

ACTIONS = {0: "Keep", 1: "Draw"}


def equilibrium(view: View) -> int:
    """Keep a card of 6 or more: a scripted player."""
    return int(int(view.messages[0].content) < 6)


class HighCard(Game):
    """The higher card wins, after both have decided at the same time."""

    seats = ("left", "right")
    observation_size = 9
    num_actions = len(ACTIONS)

    def begin(self, seed: int) -> HighCardMatch:
        """Draw two cards of 1 to 9 for each seat."""
        return HighCardMatch(numpy_generator(seed, "deal").integers(1, 10, size=(2, 2)))

    def characters(self) -> str:
        """Return the characters of all messages and actions."""
        return "123456789" + "".join(ACTIONS.values())


class HighCardMatch(Match):
    """``cards`` are int64 [seat, card]: the second is the one that may be drawn."""

    def __init__(self, cards: np.ndarray) -> None:
        self.cards = cards
        self.final: list[int] = []

    @property
    def acting(self) -> tuple[str, ...]:
        """Both, then none."""
        return () if self.final else HighCard.seats

    def view(self, seat: str) -> View:
        """Show the seat's first card."""
        card = self.cards[HighCard.seats.index(seat), 0]
        return View((ChatMessage("user", str(card)),), ACTIONS)

    def observe(self, seat: str) -> np.ndarray:
        """Mark the number of the seat's first card."""
        return np.eye(9, dtype=np.float32)[self.cards[HighCard.seats.index(seat), 0] - 1]

    def play(self, actions: Mapping[str, int]) -> None:
        """Reveal the chosen cards."""
        self.final = [int(self.cards[i, actions[s]]) for i, s in enumerate(HighCard.seats)]

    @property
    def rewards(self) -> dict[str, float]:
        """1 for the higher card, −1 for the lower."""
        left = float(np.sign(self.final[0] - self.final[1])) if self.final else 0.0
        return {"left": left, "right": -left}
