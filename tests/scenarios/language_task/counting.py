"""A game in which seats add 1 or 2 to a total."""

from ratchet.games.match import Game, Match, View
from ratchet.language_models.types import ChatMessage


class Counting(Game):
    """Seats take turns and add 1 or 2; who reaches the total wins."""

    seats = ("a", "b")
    forfeit = -5.0

    def __init__(self, total=4):
        self.total = total

    def begin(self, seed):
        return CountingMatch(self.total, seed)

    def characters(self):
        return "0123456789"


class CountingMatch(Match):
    def __init__(self, total, seed):
        self.total, self.count, self.turn, self.seed = total, 0, 0, seed

    @property
    def acting(self):
        return () if self.count >= self.total else (Counting.seats[self.turn % 2],)

    def view(self, seat):
        if self.seed == 99:
            raise ZeroDivisionError("broken")
        return View((ChatMessage("user", f"{self.count}"),), {1: "1", 2: "2"})

    def play(self, actions):
        self.count += sum(actions.values())
        self.turn += 1

    @property
    def rewards(self):
        won = Counting.seats[(self.turn - 1) % 2] if self.count >= self.total else None
        return {seat: (0.0 if won is None else 2.0 * (seat == won) - 1) for seat in Counting.seats}

    def metrics(self):
        return {"final_count": float(self.count)}
