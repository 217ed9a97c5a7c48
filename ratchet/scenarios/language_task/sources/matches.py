"""Matches of a game as tasks: each is a seed, from which chance is drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ratchet.language_models.types import ChatMessage
from ratchet.scenarios.language_task.attempts import SEED
from ratchet.scenarios.language_task.sources.base import DEFAULT_SIZES, SIDES, Sizes, TaskSource
from ratchet.scenarios.language_task.task import Task
from ratchet.seeding import derive_seed, numpy_generator

if TYPE_CHECKING:
    from ratchet.games.match import Game
    from ratchet.scenarios.language_task.parameters import LanguageTaskParameters


class Matches(TaskSource):
    """The matches of a game; a language model's demonstrations are random legal actions."""

    def __init__(self, section: LanguageTaskParameters, game: Game) -> None:
        super().__init__(section)
        self._game = game

    def build(self, seed: int, sizes: Sizes) -> dict[str, list[Task]]:
        """Draw a seed for each match of each side."""
        return {
            side: [
                Task(
                    f"{side}-{number}",
                    f"Match {number} of {side}",
                    info={SEED: derive_seed(seed, "language_task", number, f"match/{side}")},
                )
                for number in range(sizes.of(side) or DEFAULT_SIZES[side])
            ]
            for side in SIDES
        }

    def characters(self) -> str:
        """Return the characters of the game."""
        return self._game.characters()

    def demonstrations(self, task: Task) -> Iterator[tuple[Sequence[ChatMessage], str]]:
        """Play a match at random; yield each view with the text of the chosen action.

        As in training, a seat has at most ``max_turns``.
        """
        seed = int(str(task.info[SEED]))
        generator, match = numpy_generator(seed, "demonstrations"), self._game.begin(seed)
        conversations: dict[str, list[ChatMessage]] = {name: [] for name in self._game.seats}
        turns = Counter[str]()
        while match.acting:
            turns.update(match.acting)
            if max(turns.values()) > self.section.max_turns:
                return
            chosen = {}
            for seat in match.acting:
                view, conversation = match.view(seat), conversations[seat]
                chosen[seat] = int(generator.choice(list(view.legal)))
                conversation += view.messages
                yield tuple(conversation), view.legal[chosen[seat]]
                conversation.append(ChatMessage("assistant", view.legal[chosen[seat]]))
            match.play(chosen)

    def environment(self) -> Game:
        """Return the game."""
        return self._game
